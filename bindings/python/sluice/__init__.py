"""Sluice: sparse AllReduce of NumPy arrays through streaming aggregators.

    import sluice
    import numpy as np

    with sluice.Context() as context, context.join() as job:
        gradients = np.zeros(1_000_000, np.float32)
        gradients[42] = job.rank + 1
        job.all_reduce(gradients).wait()

A Context is this process's way to the aggregators; a Communicator is its membership of one job.
Every rank of a job must start the same collectives in the same order. Arrays are read and written
in place, never copied; those of empty() and zeros() here are summed where they lie by the ranks of
one host, too. Waiting and joining let other threads run, and Ctrl-C ends them; in asyncio, `await
work` lets other tasks run. Leaving has a time-out of its own and cannot be interrupted.

Threads may share all of these. One that closes what others use waits for their calls that are about
to start an op, and what they call afterwards raises InvalidArgument.
"""
from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import math
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

try:
    import numpy as np
except ModuleNotFoundError as missing:
    if missing.name != "numpy":
        raise
    raise ImportError(f"sluice needs NumPy, which {sys.executable} does not have: install it there"
                      " (python3 -m pip install numpy), or use the Python that has it (Debian's is"
                      " /usr/bin/python3, with the package python3-numpy)") from None
from numpy.typing import ArrayLike, NDArray

from sluice import _arrays, _interface, _library, _sparse, compress
from sluice._global_top_k import GlobalTopK
from sluice._interface import JobStatistics, OpStatistics, Status
from sluice._library import Error, InvalidArgument, WaitTimeout, call, lib
from sluice._memory import empty, lent, zeros

if TYPE_CHECKING:
    import asyncio

__all__ = ["Communicator", "CompletionQueue", "Context", "Error", "GlobalTopK", "InvalidArgument",
           "JobStatistics", "OpStatistics", "SparseWork", "Status", "WaitTimeout", "Work",
           "__build__", "__version__", "compress", "empty", "zeros"]
__version__: str = lib.sluice_version().decode()
__build__: str = lib.sluice_build().decode()  # what git says of the library's sources
for _public in (Error, GlobalTopK, InvalidArgument, JobStatistics, OpStatistics, Status,
                WaitTimeout, empty, zeros):
    _public.__module__ = "sluice"  # what tracebacks show

_CONTEXT_SETTINGS = {"aggregators", "host", "host_level", "host_process_vm", "port", "address",
                     "connect_timeout_ms", "mtu", "vlan", "memory_mib", "integrity",
                     "hugepages", "idle", "log", "timeline", "metrics_listen",
                     "faults", "eal_args"}
_NO_TAG = 2**64 - 1
_LOOK_NS = 50_000_000  # how long a wait may keep a signal's handler from running


def _stragglers(function: Any, handle: Any) -> list[int]:
    ranks, count = (ctypes.c_uint16 * _library.MAX_RANKS)(), ctypes.c_size_t()
    call(function, handle, ranks, len(ranks), ctypes.byref(count))
    return list(ranks[:count.value])


class _Options:
    """A sluice_options: the environment's settings, if wanted, and then those given."""

    def __init__(self, environment: bool, settings: dict[str, Any]):
        self.handle = lib.sluice_options_create()
        if not self.handle:
            raise MemoryError
        if environment:
            call(lib.sluice_options_from_environment, self.handle)
        self.interrupt = ctypes.c_int(0)
        call(lib.sluice_options_set_interrupt, self.handle, ctypes.byref(self.interrupt))
        for name, value in settings.items():
            call(lib.sluice_options_set, self.handle, name.encode(), _text(name, value).encode())

    def __del__(self, destroy: Any = lib.sluice_options_destroy) -> None:
        destroy(getattr(self, "handle", None))


def _text(name: str, value: Any) -> str:
    """Of a setting, as sluice_options_set reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return (" " if name == "eal_args" else ",").join(_text(name, part) for part in value)
    if not isinstance(value, str):
        return str(_arrays.integer(name, value, f"the setting {name}: a text, a number or a bool"))
    if "\0" in value:
        raise InvalidArgument(f"the setting {name} has a zero byte", Status.INVALID_ARGUMENT)
    return value


class Context:
    """This process's ports, packet memory and progress thread. A process has them once: all its
    Contexts, and those of PyTorch's backend, share them as the first has opened them, until the
    last is closed.

    environment: whether SLUICE_* variables, and the launcher's rank and world size, count.
    settings: override them; the names are the variables' in lower case, without the prefix:
        aggregators="vhost:/run/sluice", connect_timeout_ms=1000, hugepages=True, ... Those of jobs
        are kept for join().

    Raises InvalidArgument, also for a setting that differs from what is open; Error.
    """

    def __init__(self, *, environment: bool = True, **settings: Any):
        options = _Options(environment, settings)
        self._environment = environment
        self._settings = settings
        self._handle = ctypes.c_void_p()
        self._lock = threading.RLock()  # while it is closed, nobody begins to join
        self._members: set[int] = set()  # ids of handles: from before they join on
        # The last to be made is the first to go when the interpreter ends. Made before the call:
        # Ctrl-C may come right after it.
        self._finalizer = weakref.finalize(self, lib.sluice_context_close, self._handle, None)
        call(lib.sluice_context_share, options.handle, ctypes.byref(self._handle))

    def join(self, **settings: Any) -> Communicator:
        """Joins a job, and returns when all its ranks have; settings as above: rank=0,
        world_size=2, job=7 or job="bert-large", join_timeout_ms=5000, ... They override those that
        the Context was given. Ctrl-C ends the wait. Raises InvalidArgument, Error."""
        return Communicator(self, **settings)

    def start_timeline(self, file: str | os.PathLike[str]) -> None:
        """Begins to write a timeline of the ops that are called from now on, for Perfetto, as the
        setting `timeline` does from the start: %r in the name stands for the rank, %p for the
        process id, and without either the rank is put before the extension. Raises InvalidArgument
        where there is one; Error, which names the path, if it cannot be written."""
        with self._lock:
            self._refuse_if_closed()
            call(lib.sluice_context_start_timeline, self._handle, os.fsencode(file))

    def stop_timeline(self) -> None:
        """Completes the file. Raises InvalidArgument where there is no timeline; Error, which names
        the path, if not all could be written: there is none then either."""
        with self._lock:
            self._refuse_if_closed()
            call(lib.sluice_context_stop_timeline, self._handle)

    def close(self) -> None:
        """Raises InvalidArgument, and it stays open, while communicators of it exist."""
        with self._lock:
            if self._members:
                raise InvalidArgument(f"{len(self._members)} of its communicators must be closed"
                                      " first", Status.INVALID_ARGUMENT)
            if self._finalizer.detach():
                call(lib.sluice_context_close, self._handle)

    def _add(self, member: ctypes.c_void_p) -> None:
        with self._lock:
            self._refuse_if_closed()
            self._members.add(id(member))

    def _refuse_if_closed(self) -> None:
        if not self._finalizer.alive:
            raise InvalidArgument("the Context is closed", Status.INVALID_ARGUMENT)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # else that one is to be seen
                raise


class Communicator:
    """This process's membership of one job: see Context.join. If an exception ends `with`, the
    program, or comes before close(), ranks that miss this one are told so."""

    def __init__(self, context: Context, **settings: Any):
        for name in _CONTEXT_SETTINGS & settings.keys():
            raise InvalidArgument(f"{name} is a setting of the Context, not of a job",
                                  Status.INVALID_ARGUMENT)
        options = _Options(context._environment, {**context._settings, **settings})
        self._join(context, lib.sluice_communicator_join, options.handle, options.interrupt)

    @classmethod
    def _of_split(cls, whole: Communicator, split: Work) -> Communicator:
        part = cls.__new__(cls)
        part._join(whole._context, lib.sluice_communicator_join_split, split._handle,
                   whole._interrupt)
        return part

    def _join(self, context: Context, function: Any, what: ctypes.c_void_p,
              interrupt: ctypes.c_int) -> None:
        self._context = context
        self._interrupt = interrupt  # the library looks at it when parts join, too
        self._handle = ctypes.c_void_p()
        self._lock = threading.RLock()  # of the handle: while it is used, it is not destroyed
        self._pending = _Pending()
        self._handled = id(sys.exc_info()[1])  # it does not end the use of this job
        # It holds the context, which so is closed after this is gone.
        self._finalizer = weakref.finalize(self, _destroy, self._handle, self._lock, self._pending,
                                           context)
        try:
            context._add(self._handle)
            _library.call_beside(interrupt, function, context._handle, what,
                                 ctypes.byref(self._handle))
        except BaseException:
            interrupt.value = 0  # the whole, of which this was to be a part, may have others
            self._finalizer()
            raise
        self.rank: int = lib.sluice_communicator_rank(self._handle)
        self.world_size: int = lib.sluice_communicator_world_size(self._handle)
        #: Of the job at its aggregators, also where that was derived.
        self.job_id: int = lib.sluice_communicator_job_id(self._handle)

    def block_elements(self, dtype: Any, wanted: int = 0) -> int:
        """Elements per block of arrays of this dtype: the job's, or `wanted` where that is not 0,
        halved until one block fits a packet."""
        caller = "block_elements"
        return self._block_elements(_arrays.element_type(caller, np.dtype(dtype), None),
                                    _arrays.block_elements_of(caller, wanted))

    def all_reduce(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                   reduction: str = "sum", nonzero_blocks: NDArray[np.bool_] | None = None,
                   block_elements: int = 0, tag: int = 0,
                   element_type: str | None = None, encoding: str | None = None,
                   rounding_seed: int = 0) -> Work:
        """Starts: every rank's output becomes the reduction over the ranks' arrays.

        array: C-contiguous, float32, float64, float16, int8, uint8, int16, int32, int64 or bool, in
            this machine's order of bytes; any shape. It belongs to Sluice until the op is done.
        output: of the same shape and dtype, and apart from `array`; None: in place.
        reduction: "sum", "prod", "min", "max", "avg"; of integers also "band", "bor", "bxor",
            bitwise. Of bools the logical ones: "band", "bor", "bxor" (whose bytes must be 0 or 1),
            and "min" and "max".
        nonzero_blocks: one bool per block of block_elements(dtype, block_elements) elements; the
            others must hold nothing but +0. Spares the search for them.
        block_elements: of a block in this op, 1 to 16384, as the rows of a table; 0: the job's. The
            same on all ranks.
        tag: equal on all ranks; tells calls of equal shape in swapped order apart.
        element_type: "bfloat16" for arrays of uint16 that hold such; else the dtype's.
        encoding: how the elements of float32 travel, the same on all ranks: "float16", "bfloat16",
            "int8", "int4"; None: as they are. What each loses: docs/sparsity.md.
        rounding_seed: of "int8" and "int4", equal on all ranks. Not 0: elements are rounded up or
            down by chance, which follows from it, so that their mean is right. 0: to nearest.

        Raises TypeError, InvalidArgument.
        """
        caller = "all_reduce"
        number = self._reduced(caller, array, element_type, reduction)
        output = self._like(caller, array, output)
        to = _arrays.writeable(caller, output, "output")
        options, words = self._options(caller, array, number, reduction, nonzero_blocks,
                                       block_elements, tag, encoding, rounding_seed)
        return self._start(Work(output, (array, words)), lib.sluice_all_reduce,
                           to if output is array else _arrays.address(array), to, array.size,
                           number, options)

    def sparse_all_reduce(self, tensor: Any, key_bound: int | None = None, *,
                          reduction: str = "sum", threshold: float = 0, combine: bool = False,
                          result_bytes: int = 1 << 30, tag: int = 0,
                          element_type: str | None = None, encoding: str | None = None,
                          rounding_seed: int = 0) -> SparseWork:
        """Starts: the union of all ranks' keys, with the sums of their rows. A rank that lacks a
        key adds nothing to its sum.

        tensor: a pair of C-contiguous arrays (keys, values). Keys are integers in one dimension,
            which rise strictly; values has one row per key: an element, or an array, whose shape is
            equal on all ranks. Or a scipy.sparse matrix, of the same shape on all ranks: the keys
            of its stored elements are row * columns + column. It belongs to Sluice until the op is
            done.
        key_bound: above all keys, 1 to 2^64 - 2, equal on all ranks; None with a matrix.
        reduction: of the ranks that have the key; "avg" divides by world_size all the same.
        threshold: only sums with an element of at least this magnitude are returned, and those with
            NaN; 0 or more, equal on all ranks. 0: all. Not for rows that do not fit a packet.
        combine: take keys in any order, and reduce the rows of equal keys (for "avg": add them) in
            the order in which they come, before anything is sent. A matrix needs no such word: what
            it stores twice is added, as scipy does.
        result_bytes: that the keys and rows of the result may take, 8 and a row's per key: with
            more, the op fails on every rank whose bound that is, and the job goes on.
        tag: equal on all ranks.
        element_type, encoding, rounding_seed: as in all_reduce, which also has the dtypes of
            values. A scale is one for neighbouring keys: of 1 KiB of rows at most.

        Raises TypeError, InvalidArgument.
        """
        caller = "sparse_all_reduce"
        pairs = _sparse.pairs_of(caller, tensor, key_bound, combine, reduction)
        number = _arrays.element_type(caller, pairs.values.dtype, element_type, reduction)
        reduction = _arrays.reduction_of(caller, pairs.values, reduction)
        options = _sparse.options(caller, reduction, threshold, pairs.combine, result_bytes, tag,
                                  encoding, rounding_seed)
        work = SparseWork(pairs, number)
        self._start(work, lib.sluice_sparse_all_reduce, pairs.tensor(number), pairs.key_bound,
                    options)
        return work

    def reduce(self, array: NDArray[Any], root: int = 0, output: NDArray[Any] | None = None, *,
               reduction: str = "sum", nonzero_blocks: NDArray[np.bool_] | None = None,
               block_elements: int = 0, tag: int = 0, element_type: str | None = None,
               encoding: str | None = None, rounding_seed: int = 0) -> Work:
        """Starts: the root's output becomes the reduction over the ranks' arrays; elsewhere there
        is none. Else as all_reduce."""
        caller = "reduce"
        number = self._reduced(caller, array, element_type, reduction)
        root, to = _arrays.root_of(caller, root, self.world_size), None
        if self.rank == root:
            output = self._like(caller, array, output)
            to = _arrays.writeable(caller, output, "output")
        else:
            output = None
        options, words = self._options(caller, array, number, reduction, nonzero_blocks,
                                       block_elements, tag, encoding, rounding_seed)
        return self._start(Work(output, (array, words)), lib.sluice_reduce,
                           _arrays.address(array), to, array.size, number, root, options)

    def reduce_scatter(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                       counts: ArrayLike | None = None, reduction: str = "sum",
                       nonzero_blocks: NDArray[np.bool_] | None = None, block_elements: int = 0,
                       tag: int = 0, element_type: str | None = None, encoding: str | None = None,
                       rounding_seed: int = 0) -> Work:
        """Starts: the ranks' arrays are reduced, and each rank's output becomes its part: the parts
        follow each other in rank order.

        output: of the same dtype, with as many elements as this rank's part. It may lie in its
            place of `array`, else they do not overlap. None: a new one, flat with `counts`.
        counts: the elements of each rank's part, the same on all ranks; None: the array's first
            dimension is cut into equal parts.

        Else as all_reduce.
        """
        caller = "reduce_scatter"
        number = self._reduced(caller, array, element_type, reduction)
        shape = () if counts is not None else _arrays.equal_part(caller, array, self.world_size)
        sizes = _arrays.counts_of(caller, counts, (self.world_size,), math.prod(shape))
        _arrays.require_elements(caller, array, int(sizes.sum()))
        own = int(sizes[self.rank])
        output = _arrays.output_of(caller, output, shape or (own,), own, array.dtype)
        to = _arrays.writeable(caller, output, "output")
        options, words = self._options(caller, array, number, reduction, nonzero_blocks,
                                       block_elements, tag, encoding, rounding_seed)
        return self._start(Work(output, (array, words)), lib.sluice_reduce_scatter,
                           _arrays.address(array), to, _arrays.address(sizes), sizes.size, number,
                           options)

    def broadcast(self, array: NDArray[Any], root: int = 0, *, tag: int = 0) -> Work:
        """Starts: every rank's array becomes that of rank `root`, bit for bit; the root's is only
        read.

        array: C-contiguous, of the same size and dtype on all ranks, elements of 1, 2, 4 or 8
            bytes.
        """
        caller = "broadcast"
        number = self._moved(caller, array)
        root = _arrays.root_of(caller, root, self.world_size)
        read_only = self.rank == root
        to = _arrays.address(array) if read_only else _arrays.writeable(caller, array)
        return self._start(Work(array, ()), lib.sluice_broadcast, to, array.size, number,
                           root, _arrays.moved_tag(caller, tag, array.dtype))

    def all_gather(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                   counts: ArrayLike | None = None, tag: int = 0) -> Work:
        """Starts: every rank's output becomes the ranks' arrays one after the other, bit for bit.

        array: C-contiguous, elements of 1, 2, 4 or 8 bytes, of the same dtype on all ranks. It may
            lie in its place of `output`, else they do not overlap.
        output: of the same dtype, with as many elements as all arrays have; None: a new one, of
            shape (world_size, *array.shape) without `counts`, flat with them.
        counts: the elements of each rank's array, the same on all ranks; None: all have as many.
        """
        caller = "all_gather"
        number = self._moved(caller, array)
        output, sizes = self._gathered(caller, array, output, counts)
        to = _arrays.writeable(caller, output, "output")
        return self._start(Work(output, (array,)), lib.sluice_all_gather,
                           _arrays.address(array), to, _arrays.address(sizes), sizes.size, number,
                           _arrays.moved_tag(caller, tag, array.dtype))

    def gather(self, array: NDArray[Any], root: int = 0, output: NDArray[Any] | None = None, *,
               counts: ArrayLike | None = None, tag: int = 0) -> Work:
        """Starts: as all_gather, but only the root has an output."""
        caller = "gather"
        number = self._moved(caller, array)
        root, to = _arrays.root_of(caller, root, self.world_size), None
        if self.rank == root:
            output, sizes = self._gathered(caller, array, output, counts)
            to = _arrays.writeable(caller, output, "output")
        else:
            output, sizes = None, self._sizes(caller, array, counts)
        return self._start(Work(output, (array,)), lib.sluice_gather,
                           _arrays.address(array), to, _arrays.address(sizes), sizes.size, number,
                           root, _arrays.moved_tag(caller, tag, array.dtype))

    def scatter(self, array: NDArray[Any] | None, output: NDArray[Any], root: int = 0, *,
                counts: ArrayLike | None = None, tag: int = 0) -> Work:
        """Starts: each rank's output becomes its part of the root's array, bit for bit: the parts
        follow each other in rank order.

        array: at the root, C-contiguous, elements of 1, 2, 4 or 8 bytes; not looked at elsewhere.
        output: of the same dtype. At the root it may lie in its place of `array`, else they do not
            overlap.
        counts: the elements of each rank's output, the same on all ranks; None: all have as many.
        """
        caller = "scatter"
        number = _arrays.moved_type(caller, _arrays.checked(caller, output, "output").dtype)
        root, sizes = _arrays.root_of(caller, root, self.world_size), self._sizes(
            caller, output, counts, "output")
        to, start = _arrays.writeable(caller, output, "output"), None
        if self.rank == root:
            if array is None or _arrays.checked(caller, array).dtype != output.dtype:
                raise _arrays.refusal(caller, "array is " + (
                    "None" if array is None else str(array.dtype)) + f"; {output.dtype} expected,"
                    " as output is")
            _arrays.require_elements(caller, array, int(sizes.sum()))
            start = _arrays.address(array)
        return self._start(Work(output, (array,)), lib.sluice_scatter, start, to,
                           _arrays.address(sizes), sizes.size, number, root,
                           _arrays.moved_tag(caller, tag, output.dtype))

    def all_to_all(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                   counts: ArrayLike | None = None, tag: int = 0) -> Work:
        """Starts: each rank's output becomes what the ranks have for it, in rank order, bit for
        bit. An array has one part for each rank, in rank order.

        array: C-contiguous, elements of 1, 2, 4 or 8 bytes, of the same dtype on all ranks.
        output: of the same dtype, apart from `array`; None: a new one, flat with `counts`, else
            like `array`.
        counts: counts[from][to], the same on all ranks, has the elements that go from one rank to
            another; None: the array's first dimension is cut into equal parts.
        """
        caller = "all_to_all"
        number = self._moved(caller, array)
        part = () if counts is not None else _arrays.equal_part(caller, array, self.world_size)
        sizes = _arrays.counts_of(caller, counts, (self.world_size,) * 2, math.prod(part))
        _arrays.require_elements(caller, array, int(sizes[self.rank].sum()))
        own = int(sizes[:, self.rank].sum())
        output = _arrays.output_of(caller, output, (own,) if counts is not None else array.shape,
                                   own, array.dtype)
        to = _arrays.writeable(caller, output, "output")
        return self._start(Work(output, (array,)), lib.sluice_all_to_all,
                           _arrays.address(array), to, _arrays.address(sizes), sizes.size, number,
                           _arrays.moved_tag(caller, tag, array.dtype))

    def send(self, array: NDArray[Any], to: int, *, tag: int = 0) -> Work:
        """Starts: sends an array to rank `to`, another than this one, which receives it by recv(),
        bit for bit; it is only read. Goes on when both have called, however long that takes.

        array: C-contiguous, elements of 1, 2, 4 or 8 bytes. Messages from one rank to another meet
            in the order of the calls; number and dtype of the elements and `tag` must be equal on
            both sides, else both fail with Status.OP_MISMATCH.

        What is sent to different ranks, the two directions between two ranks, and collectives do
        not wait for each other.
        """
        caller = "send"
        number = self._moved(caller, array)
        to = _arrays.rank_of(caller, "to", to, self.world_size)
        return self._start(Work(array, ()), lib.sluice_send, _arrays.address(array),
                           array.size, number, to, _arrays.moved_tag(caller, tag, array.dtype))

    def recv(self, array: NDArray[Any], source: int, *, tag: int = 0) -> Work:
        """Starts: `array` becomes what rank `source`, another than this one, sends to this one: see
        send()."""
        caller = "recv"
        number = self._moved(caller, array)
        source = _arrays.rank_of(caller, "source", source, self.world_size)
        return self._start(Work(array, ()), lib.sluice_recv,
                           _arrays.writeable(caller, array), array.size, number, source,
                           _arrays.moved_tag(caller, tag, array.dtype))

    def barrier(self) -> Work:
        """Starts: done when every rank has called it."""
        return self._start(Work(None, ()), lib.sluice_barrier)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the ranks into parts, as MPI_Comm_split does. Returns a Communicator of those with
        this rank's color, ordered by `key`, and by their ranks here where keys are equal. None, or
        a negative number: this rank joins no part, and None is returned. A collective call, which
        waits for every rank; Ctrl-C ends that wait.

        Each part is a job of its own, with the settings of this one and an id derived from its id:
        it counts as a job at the aggregators, and they look up its secret by that id, so they need
        a line "* SECRET". It may outlive this Communicator.

        Raises TypeError, InvalidArgument, Error.
        """
        caller = "split"
        color = -1 if color is None else _arrays.int32_of(caller, "color", color)
        key = _arrays.int32_of(caller, "key", key)
        work = self._start(Work(None, ()), lib.sluice_split, color, key)
        work.wait()
        return None if color < 0 else Communicator._of_split(self, work)

    def duplicate(self) -> Communicator:
        """The same ranks in another job, as MPI_Comm_dup: for a part of the program whose calls
        shall not have to keep an order with those of the others. Else as split()."""
        work = self._start(Work(None, ()), lib.sluice_duplicate)
        work.wait()
        return Communicator._of_split(self, work)

    def leave(self) -> None:
        """Leaves the job in an orderly way, and waits for it. Raises Error of Status.ABORTED if ops
        were pending: then the job is aborted on all ranks."""
        with self._lock:
            self._note_exception()
            call(lib.sluice_communicator_leave, self._open())

    def abort(self, why: str = "") -> None:
        """Ends the job for all ranks, from any thread and whatever is pending: ops fail with
        Status.ABORTED here, and with Status.RANK_LEFT, naming this rank, on the others. `why` is
        for this rank's error. Does nothing where the job is over."""
        with self._lock:
            self._note_exception()
            call(lib.sluice_communicator_abort, self._open(), why.encode())

    @property
    def failure(self) -> Error | None:
        """The error that ended the job for this rank, with which every further call fails; None:
        none did, or it left in an orderly way."""
        with self._lock:
            handle = self._open()
            try:
                call(lib.sluice_communicator_failure, handle)
            except Error as error:
                return error
        return None

    @property
    def stragglers(self) -> list[int]:
        """Ranks, rising, that pending ops wait for, as Work.stragglers tells of one."""
        with self._lock:
            return _stragglers(lib.sluice_communicator_stragglers, self._open())

    @property
    def statistics(self) -> JobStatistics:
        """What it has done since it joined."""
        with self._lock:
            done = _interface.sluice_job_statistics()
            call(lib.sluice_communicator_statistics, self._open(), ctypes.byref(done),
                 ctypes.sizeof(done))
        return JobStatistics(**{name: getattr(done, name) for name, *_ in done._fields_})

    def close(self) -> None:
        """Leaves the job if that was not done, and frees what it took."""
        with self._lock:  # Ctrl-C may end the wait for it: then nothing has changed
            self._note_exception()
            self._finalizer()

    def _note_exception(self) -> None:
        """Ranks that miss this one are told if it is an exception that ends its use of the job."""
        handled = sys.exc_info()[1]  # in an `except`, a `finally` and __exit__
        if id(handled) != self._handled and _is_failure(handled):
            lib.sluice_communicator_note_exception(self._handle)

    @staticmethod
    def _reduced(caller: str, array: NDArray[Any], element_type: str | None,
                 reduction: str) -> int:
        """The number of the type of its elements."""
        return _arrays.element_type(caller, _arrays.checked(caller, array).dtype, element_type,
                                    reduction)

    @staticmethod
    def _moved(caller: str, array: NDArray[Any]) -> int:
        return _arrays.moved_type(caller, _arrays.checked(caller, array).dtype)

    @staticmethod
    def _like(caller: str, array: NDArray[Any], output: NDArray[Any] | None) -> NDArray[Any]:
        if output is None:
            return array
        if (_arrays.checked(caller, output, "output").shape != array.shape
                or output.dtype != array.dtype):
            raise _arrays.refusal(caller, f"output is {_arrays.described(output)}, array"
                                  f" {_arrays.described(array)}: they must have the same shape and"
                                  " dtype")
        return output

    def _options(self, caller: str, array: NDArray[Any], number: int, reduction: str,
                 nonzero_blocks: NDArray[np.bool_] | None, block_elements: int, tag: int,
                 encoding: str | None, rounding_seed: int) -> tuple[Any, Any]:
        blocks, block = 0, _arrays.block_elements_of(caller, block_elements)
        if nonzero_blocks is not None:
            blocks = -(-array.size // self._block_elements(number, block))
        reduction = _arrays.reduction_of(caller, array, reduction)
        return _arrays.reduce_options(caller, reduction, nonzero_blocks, blocks, block, tag,
                                      encoding, rounding_seed)

    def _sizes(self, caller: str, array: NDArray[Any], counts: ArrayLike | None,
               name: str = "array") -> NDArray[np.int64]:
        """The elements of each rank's array."""
        sizes = _arrays.counts_of(caller, counts, (self.world_size,), array.size)
        if sizes[self.rank] != array.size:
            raise _arrays.refusal(caller, f"counts has {sizes[self.rank]} for rank {self.rank},"
                                  f" whose {name} has {array.size} elements: the same expected")
        return sizes

    def _gathered(self, caller: str, array: NDArray[Any], output: NDArray[Any] | None,
                  counts: ArrayLike | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The output, and the elements of each rank's part."""
        sizes = self._sizes(caller, array, counts)
        size = int(sizes.sum())
        shape = (self.world_size, *array.shape) if counts is None else (size,)
        return _arrays.output_of(caller, output, shape, size, array.dtype), sizes

    def _block_elements(self, number: int, wanted: int) -> int:
        with self._lock:
            elements: int = lib.sluice_op_block_elements(self._open(), number, wanted)
        return elements

    def _open(self) -> ctypes.c_void_p:
        """For as long as the lock is held."""
        if not self._finalizer.alive:
            raise InvalidArgument("the Communicator is closed", Status.INVALID_ARGUMENT)
        return self._handle

    def _start(self, work: Work, function: Any, *arguments: Any) -> Work:
        """The arrays are kept from before the op begins: Ctrl-C may come at any moment."""
        with self._lock:
            handle = self._open()
            self._pending.let_go()
            tag = self._pending.keep(work)
            try:
                call(function, handle, *arguments, work._reference)
            finally:
                self._pending.begun(tag)
        return work

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()


class _WorkHandle(ctypes.c_void_p):
    """Of a work, and of the arrays whose memory is the work's."""

    def __del__(self, destroy: Any = lib.sluice_work_destroy) -> None:
        destroy(self)


class Work:
    """A started op."""

    def __init__(self, output: NDArray[Any] | None, kept: tuple[Any, ...]):
        self._handle = _WorkHandle()  # null until it has begun
        self._reference = ctypes.byref(self._handle)
        self._output = output
        self._kept = kept  # what the op reads
        self._pending: _Pending
        self._tag = 0

    def __await__(self) -> Generator[Any, None, Any]:
        """In asyncio, `await work` is wait() that lets other tasks run. Cancelling it ends the
        wait, not the op."""
        if not self.done():
            yield from self._pending.end_of(self).__await__()
        return self.wait()

    def done(self) -> bool:
        """Whether it has ended, well or with an error."""
        done: int = lib.sluice_work_done(self._handle)
        return done == 1

    def wait(self, timeout: float | None = None) -> NDArray[Any] | None:
        """Until it is done; the output array, None of a barrier.

        timeout: in seconds; WaitTimeout after it, and the op goes on. Raises the op's Error, every
        time. KeyboardInterrupt ends the wait, not the op.
        """
        left = _interface.FOREVER if timeout is None else int(timeout * 1e9)
        end = None if timeout is None else time.monotonic_ns() + left
        while True:
            try:
                call(lib.sluice_work_wait, self._handle, min(left, _LOOK_NS))
                return self._output
            except WaitTimeout:  # meanwhile handlers of signals may run
                if left <= _LOOK_NS:
                    raise WaitTimeout(f"the op is not done after {timeout} s; it goes on",
                                      Status.TIMEOUT) from None
            left = left if end is None else end - time.monotonic_ns()

    def set_timeout(self, timeout: float | None) -> None:
        """If the op is not done so many seconds after the call that started it, the job ends for
        all ranks, and every op fails with Status.OP_TIMED_OUT: this one is named and, as far as an
        aggregator has told, whom it waited for. Nobody needs to wait. In the place of the setting
        op_timeout_ms; None: it may take as long as it takes. (wait(timeout) ends nothing.) Raises
        InvalidArgument beyond a day."""
        if timeout is not None and not 0 < timeout < math.inf:
            raise InvalidArgument(f"set_timeout: {timeout} s; more than 0 expected",
                                  Status.INVALID_ARGUMENT)
        limit = 0 if timeout is None else min(math.ceil(timeout * 1000), (1 << 64) - 1)
        call(lib.sluice_work_set_timeout, self._handle, limit)

    @property
    def progress(self) -> float:
        """How much of it is done, 0 to 1: of its blocks, zero or not; of a sparse sum, of the
        streams that carry it. For progress bars."""
        progress: float = lib.sluice_work_progress(self._handle)
        return progress

    @property
    def stragglers(self) -> list[int]:
        """Ranks, rising, that an aggregator said it waits for when it was last asked, which is some
        milliseconds ago at most while the op makes no progress; empty: none is known."""
        return _stragglers(lib.sluice_work_stragglers, self._handle)

    @property
    def statistics(self) -> OpStatistics:
        """Raises InvalidArgument while it is not done."""
        cost = _interface.sluice_op_statistics()
        call(lib.sluice_work_statistics, self._handle, ctypes.byref(cost), ctypes.sizeof(cost))
        return OpStatistics(**{name: getattr(cost, name) for name, *_ in cost._fields_})


class SparseWork(Work):
    """A started sparse sum."""

    def __init__(self, pairs: _sparse.Pairs, number: int):
        super().__init__(None, (pairs.keys, pairs.values))
        self._number = number  # of the type of its elements
        self._dtype, self._row = pairs.values.dtype, pairs.values.shape[1:]
        self._key_bound, self._returned = pairs.key_bound, pairs.returned

    def wait(self, timeout: float | None = None) -> Any:
        """Until it is done; the pair (keys, values) of those that any rank has, but for sums below
        the threshold. Keys are uint64 and rise; both arrays are read-only, and their memory is the
        library's, freed when they and this are gone. Of a scipy.sparse matrix, another one of its
        shape, format and dtype. `timeout` and errors as in Work.wait.
        """
        super().wait(timeout)
        if self._output is None:
            self._kept = ()
            self._output = self._returned(*self._sums())
        return self._output

    def dense(self, output: NDArray[Any] | None = None) -> NDArray[Any]:
        """Of an op that has ended well, the sums as an array of key_bound rows, in which those that
        no key has are 0. `output`: of that shape and dtype, C-contiguous; None: a new one. Raises
        InvalidArgument, also while it is not done, and the op's Error."""
        shape = (self._key_bound, *self._row)
        if output is None:
            output = np.empty(shape, self._dtype)
        to = _arrays.writeable("dense", output, "output")
        if output.shape != shape or output.dtype != self._dtype:
            raise _arrays.refusal("dense", f"output is {_arrays.described(output)}; {self._dtype}"
                                  f" of shape {shape} expected")
        call(lib.sluice_work_sparse_dense, self._handle, to, output.size, self._number)
        return output

    @property
    def rejected(self) -> tuple[int, int, int, int]:
        """How many keys have a sum below the threshold: of at least a half of it, a quarter, an
        eighth, and less. Equal on all ranks. Raises InvalidArgument while it is not done, and the
        op's Error."""
        counts = (ctypes.c_uint64 * 4)()
        call(lib.sluice_work_sparse_rejected, self._handle, counts)
        half, quarter, eighth, less = counts
        return half, quarter, eighth, less

    def _sums(self) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        keys, values, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        call(lib.sluice_work_sparse_sums, self._handle, self._number, ctypes.byref(keys),
             ctypes.byref(values), ctypes.byref(count))
        return (lent(self._handle, keys.value, (count.value,), np.dtype(np.uint64)),
                lent(self._handle, values.value, (count.value, *self._row), self._dtype))


class CompletionQueue:
    """Tells of works as they end, in the order in which they end, whatever the order in which they
    began. Several threads may use one. It may outlive communicators and the Context.

        queue = sluice.CompletionQueue()
        for array in arrays:
            queue.add(job.all_reduce(array))
        while queue:
            apply(queue.next().wait())

    Its length is the number of works that next() has not returned yet. select, selectors and
    asyncio's add_reader take it as it is: it can be read as long as next(0) has a work to return.
    """

    def __init__(self) -> None:
        self._queue = lib.sluice_completion_queue_create()
        if not self._queue:
            raise MemoryError
        self._works: dict[int, Work] = {}  # by their tags
        self._tags = itertools.count()
        self._lock = threading.Lock()
        self._interrupted = False  # and no call of next() has told so
        self._ended: collections.deque[int] = collections.deque()  # tags that a signal kept back

    def add(self, work: Work) -> None:
        """Has next() return the work once when it has ended, well or with an error; at once if it
        has. It may be in several queues. Raises InvalidArgument where it waits in this one."""
        tag = next(self._tags)
        self._works[tag] = work
        try:
            call(lib.sluice_completion_queue_add, self._queue, work._handle, tag)
        except BaseException:  # of a signal's handler, perhaps when it was added: next() skips it
            self._works.pop(tag, None)
            raise

    def next(self, timeout: float | None = None) -> Work | None:
        """The work that ended first of those not returned yet. Waits for one, up to `timeout`
        seconds (0: not at all; None: for ever), and drives the ops meanwhile. None: there was none
        until then, or interrupt() was called. wait() on what it returns raises the op's Error, if
        it failed. KeyboardInterrupt ends the wait."""
        end = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        while True:
            left = _LOOK_NS if end is None else max(0, end - time.monotonic_ns())
            ended = ctypes.c_uint64(_NO_TAG)
            try:
                if self._ended:
                    ended.value = self._ended.popleft()
                else:
                    call(lib.sluice_completion_queue_next, self._queue, min(left, _LOOK_NS),
                         ctypes.byref(ended))
                if ended.value in self._works:
                    return self._works.pop(ended.value)
            except WaitTimeout:  # or an interruption; meanwhile handlers of signals may run
                with self._lock:
                    interrupted, self._interrupted = self._interrupted, False
                if interrupted or (end is not None and time.monotonic_ns() >= end):
                    return None
            except BaseException:  # of a signal's handler, perhaps when it was told already
                if ended.value in self._works:
                    self._ended.append(ended.value)
                raise

    def interrupt(self) -> None:
        """Has one call of next() return None, now or the next one that finds no ended work."""
        with self._lock:
            self._interrupted = True
        lib.sluice_completion_queue_interrupt(self._queue)

    def fileno(self) -> int:
        """A descriptor that nobody is to read but by next(); it is closed with the queue."""
        descriptor = ctypes.c_int()
        call(lib.sluice_completion_queue_descriptor, self._queue, ctypes.byref(descriptor))
        return descriptor.value

    def __len__(self) -> int:
        return len(self._works)

    def __del__(self, destroy: Any = lib.sluice_completion_queue_destroy) -> None:
        destroy(getattr(self, "_queue", None))


class _Pending:
    """Works whose ops have not ended, and with them their arrays, which must not go; and who awaits
    them in asyncio."""

    def __init__(self) -> None:
        self._queue = lib.sluice_completion_queue_create()
        if not self._queue:
            raise MemoryError
        self._works: dict[int, Work] = {}  # by their tags in the queue
        self._count = 0
        self._awaited: dict[int, list[asyncio.Future[None]]] = {}  # by the same
        self._awaiting: collections.Counter[asyncio.AbstractEventLoop] = collections.Counter()

    def keep(self, work: Work) -> int:
        """Of an op that is about to begin. Returns its tag."""
        self._count += 1
        self._works[self._count] = work
        work._pending, work._tag = self, self._count
        return self._count

    def begun(self, tag: int) -> None:
        """Or it has not: then its arrays may go at once."""
        work = self._works[tag]
        if not work._handle:
            del self._works[tag]
        else:  # if this fails, or Ctrl-C comes before, its arrays stay until the job is left
            lib.sluice_completion_queue_add(self._queue, work._handle, tag, None)

    def let_go(self) -> None:
        """Of the works whose ops have ended, in whatever order. By any thread."""
        ended = ctypes.c_uint64()
        while lib.sluice_completion_queue_next(self._queue, 0, ctypes.byref(ended), None) == 0:
            self._wake(ended.value)
            self._works.pop(ended.value, None)

    async def end_of(self, work: Work) -> None:
        """Lets the event loop of the caller run until the op is done."""
        import asyncio  # whoever awaits has it
        loop, descriptor = asyncio.get_running_loop(), ctypes.c_int()
        call(lib.sluice_completion_queue_descriptor, self._queue, ctypes.byref(descriptor))
        future = loop.create_future()
        self._awaited.setdefault(work._tag, []).append(future)
        self._awaiting[loop] += 1
        if self._awaiting[loop] == 1:
            loop.add_reader(descriptor.value, self.let_go)
        try:
            if work.done():  # its tag may have come before the future was there
                self._wake(work._tag)
                _end(future)
            await future
        finally:
            self._awaiting[loop] -= 1
            if self._awaiting[loop] == 0:
                del self._awaiting[loop]
                loop.remove_reader(descriptor.value)

    def _wake(self, tag: int) -> None:
        for future in self._awaited.pop(tag, ()):
            with contextlib.suppress(RuntimeError):  # its event loop may be closed
                future.get_loop().call_soon_threadsafe(_end, future)

    def clear(self) -> None:
        """Every op has ended."""
        self._works.clear()

    def __del__(self, destroy: Any = lib.sluice_completion_queue_destroy) -> None:
        destroy(getattr(self, "_queue", None))


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_failure(error: BaseException | None) -> bool:
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, (GeneratorExit, StopIteration,
                                                        StopAsyncIteration))


def _exception_ends_program() -> bool:
    """Nobody has handled it, so the interpreter has printed it, and ends. (An interactive one has
    gone on since. When finalizers run at exit, the main thread counts as ended.)"""
    return (getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
            and not threading.main_thread().is_alive())


def _destroy(handle: ctypes.c_void_p, lock: Any, pending: _Pending, context: Context) -> None:
    with lock:
        try:
            if _exception_ends_program():
                lib.sluice_communicator_note_exception(handle)
            lib.sluice_communicator_destroy(handle)
        finally:  # Ctrl-C may come
            handle.value = None
            pending.clear()  # every op is done now: their arrays may go
            context._members.discard(id(handle))
