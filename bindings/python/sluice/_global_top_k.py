"""GlobalTopK: Ok-Topk's loop, by means of sluice.h."""
from __future__ import annotations

import contextlib
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from sluice import _arrays
from sluice._library import Error, call, lib
from sluice.compress import Floats, _count, _floats, _residual

if TYPE_CHECKING:
    from sluice import Communicator, Work


class GlobalTopK:
    """The k largest elements of a sum over the ranks, step by step: Ok-Topk, PPoPP 2022.

        top_k = sluice.GlobalTopK(gradients.size // 100)  # of one array; not for two threads
        residual = np.zeros_like(gradients)
        ...
        top_k.all_reduce(job, gradients, residual=residual)  # zero but for about k elements

    A step sends the k largest elements of gradients + residual of each rank, and delivers the sums
    that reach a threshold, which all ranks compute alike from the step before. The residual keeps
    what was not sent or not delivered. global_top_k.hpp of the C++ library has the rest.

    k, reduction ("sum" or "avg") and tag must be equal on all ranks, and all take the same steps.

    exact_every: as ElementTopK's; more than 1 spares time and sends more.
    result_bytes: with more keys and sums than that, 12 bytes each, a step fails on this rank.
    """

    def __init__(self, k: int, *, exact_every: int = 1, reduction: str = "sum",
                 result_bytes: int = 1 << 30, tag: int = 0):
        caller = "GlobalTopK"
        self._handle = c_void_p()
        self._kept: list[Any] = []  # residuals, from before a step begins until it is finished
        number = lib.sluice_parse_reduction(reduction.encode())
        if number == 0:
            raise _arrays.refusal(caller, f"reduction {reduction!r}; 'sum' or 'avg' expected")
        call(lib.sluice_global_top_k_create, _count(caller, "k", k),
             _count(caller, "exact_every", exact_every, 32), number,
             _count(caller, "result_bytes", result_bytes), _arrays.tag_of(caller, tag),
             byref(self._handle))

    def start(self, job: Communicator, gradients: Floats, *,
              residual: Floats | None = None) -> Work:
        """Begins a step; gradients may be changed from then on. The work is for waiting, has no
        output, and finish() must be called all the same.

        gradients: C-contiguous float32, of the same size on all ranks, 2^32 elements at most.
        residual: of the same size; zeros at first. It belongs to the step until finish(). None:
            what is not delivered is lost.
        """
        from sluice import Work  # which imports this module
        caller = "GlobalTopK.start"
        size = _floats(caller, gradients, "gradients").size
        address = _residual(caller, residual, size)
        self._kept.append(residual)
        return job._start(Work(None, (self,)), lib.sluice_global_top_k_start, self._handle,
                          _arrays.address(gradients), address, size)

    def finish(self, out: Floats) -> int:
        """Waits for the end of the step; out becomes the sums delivered, and 0 elsewhere. Returns
        how many they are. Raises the op's Error: then the residual is gradients + residual, and the
        gradients must not be given again; see forget()."""
        caller = "GlobalTopK.finish"
        delivered = c_uint64()
        size = _floats(caller, out, "out").size
        call(lib.sluice_global_top_k_finish, self._handle, _arrays.writeable(caller, out, "out"),
             size, byref(delivered))
        self._kept.clear()
        return delivered.value

    def all_reduce(self, job: Communicator, gradients: Floats, *, residual: Floats | None = None,
                   out: Floats | None = None) -> int:
        """A whole step; out: None: over the gradients. After KeyboardInterrupt it is still under
        way: finish() ends it."""
        caller = "GlobalTopK.all_reduce"
        to = gradients if out is None else out
        if _floats(caller, to, "out").size != _floats(caller, gradients, "gradients").size:
            raise _arrays.refusal(caller, f"out is {_arrays.described(to)}; {gradients.size}"
                                  " elements expected")
        _arrays.writeable(caller, to, "out")
        work = self.start(job, gradients, residual=residual)
        with contextlib.suppress(Error):  # finish() raises it, when the residual is whole
            work.wait()
        return self.finish(to)

    def set_k(self, k: int) -> None:
        """On all ranks, from the next step on."""
        call(lib.sluice_global_top_k_set_k, self._handle, _count("set_k", "k", k))

    def forget(self) -> None:
        """On all ranks: the next step begins anew, with threshold 0. So all must do after a step
        that has failed on some and not on others."""
        call(lib.sluice_global_top_k_forget, self._handle)

    @property
    def threshold(self) -> float:
        """Of the next step: only sums of at least this magnitude are delivered."""
        threshold: float = lib.sluice_global_top_k_threshold(self._handle)
        return threshold

    def __del__(self, destroy: Any = lib.sluice_global_top_k_destroy) -> None:
        destroy(getattr(self, "_handle", None))
