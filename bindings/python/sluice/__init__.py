"""Sluice: sparse AllReduce of NumPy arrays through streaming aggregators.

    import numpy as np
    import sluice

    with sluice.Context() as context, context.join() as job:
        gradients = np.zeros(1_000_000, np.float32)
        gradients[42] = job.rank + 1
        job.all_reduce(gradients).wait()

A Context is opened once per process; a Communicator is this process's membership of one job. Every
rank of a job must start the same collectives in the same order. Arrays are read and written in
place, never copied. Waiting lets other threads run, and Ctrl-C ends it; joining and leaving have
time-outs of their own and cannot be interrupted.
"""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import operator
import time
import types
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice import _library
from sluice._library import Error, InvalidArgument, Status, WaitTimeout, call, lib

__all__ = ["Communicator", "Context", "Error", "InvalidArgument", "OpStatistics", "Status",
           "WaitTimeout", "Work", "__version__"]
__version__: str = lib.sluice_version().decode()
for _public in (Error, InvalidArgument, Status, WaitTimeout):
    _public.__module__ = "sluice"  # what tracebacks show

_CONTEXT_SETTINGS = {"aggregators", "port", "address", "connect_timeout_ms", "mtu", "memory_mib",
                     "integrity", "hugepages", "idle", "log", "faults", "eal_args"}
_LOOK_NS = 50_000_000  # how long a wait may keep a signal's handler from running
_TYPES = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16",
          "int8": "int8", "uint8": "uint8", "int16": "int16", "int32": "int32",
          "int64": "int64"}  # NumPy's names -> Sluice's
_MOVED = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # what is not reduced is bits


@dataclasses.dataclass(frozen=True)
class OpStatistics:
    """What one op cost this rank."""
    duration_ns: int  #: from the call to completion
    blocks: int  #: of the array
    blocks_sent: int  #: own non-zero ones
    blocks_received: int  #: those that are non-zero on some rank
    packets_sent: int  #: of every kind, for this op
    packets_received: int
    bytes_sent: int  #: UDP payload
    bytes_received: int
    retransmissions: int  #: DATA sent again, and PROBEs


class _Options:
    """A sluice_options: the environment's settings, if wanted, and then those given."""

    def __init__(self, environment: bool, settings: dict[str, Any]):
        self.handle = lib.sluice_options_create()
        if not self.handle:
            raise MemoryError
        if environment:
            call(lib.sluice_options_from_environment, self.handle)
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
        return str(_integer(name, value, f"the setting {name}: a text, a number or a bool"))
    if "\0" in value:
        raise InvalidArgument(f"the setting {name} has a zero byte", Status.INVALID_ARGUMENT)
    return value


def _integer(name: str, value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} expected, not {name} = {value!r}") from None


class Context:
    """This process's ports, packet memory and progress thread: at most one at a time.

    environment: whether SLUICE_* variables, and the launcher's rank and world size, count.
    settings: override them; the names are the variables' in lower case, without the prefix:
        aggregators="vhost:/run/sluice", connect_timeout_ms=1000, hugepages=True, ... Those of jobs
        are kept for join().

    Raises InvalidArgument, Error.
    """

    def __init__(self, *, environment: bool = True, **settings: Any):
        options = _Options(environment, settings)
        self._environment = environment
        self._settings = settings
        self._handle = ctypes.c_void_p()
        # The last to be made is the first to go when the interpreter ends. Made before the call:
        # Ctrl-C may come right after it.
        self._finalizer = weakref.finalize(self, lib.sluice_context_close, self._handle, None)
        call(lib.sluice_context_open, options.handle, ctypes.byref(self._handle))

    def join(self, **settings: Any) -> Communicator:
        """Joins a job, and returns when all its ranks have; settings as above: rank=0,
        world_size=2, job=7, join_timeout_ms=5000, ... They override those that the Context was
        given. Raises InvalidArgument, Error."""
        return Communicator(self, **settings)

    def close(self) -> None:
        """Raises InvalidArgument, and it stays open, while communicators of it exist."""
        if self._finalizer.alive:
            call(lib.sluice_context_close, self._handle)
            self._finalizer.detach()

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
    """This process's membership of one job: see Context.join."""

    def __init__(self, context: Context, **settings: Any):
        if not context._finalizer.alive:
            raise InvalidArgument("the Context is closed", Status.INVALID_ARGUMENT)
        for name in _CONTEXT_SETTINGS & settings.keys():
            raise InvalidArgument(f"{name} is a setting of the Context, not of a job",
                                  Status.INVALID_ARGUMENT)
        options = _Options(context._environment, {**context._settings, **settings})
        self._context = context
        self._handle = ctypes.c_void_p()
        self._pending: collections.deque[Work] = collections.deque()  # their arrays must not go
        # It holds the context, which so is closed after this is gone.
        self._finalizer = weakref.finalize(self, _destroy, self._handle, self._pending, context)
        call(lib.sluice_communicator_join, context._handle, options.handle,
             ctypes.byref(self._handle))
        self.rank: int = lib.sluice_communicator_rank(self._handle)
        self.world_size: int = lib.sluice_communicator_world_size(self._handle)

    def block_elements(self, dtype: Any) -> int:
        """Elements per block of arrays of this dtype."""
        elements: int = lib.sluice_block_elements(
            self._open(), _element_type(np.dtype(dtype), None))
        return elements

    def all_reduce(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                   reduction: str = "sum", nonzero_blocks: NDArray[np.bool_] | None = None,
                   tag: int = 0, element_type: str | None = None) -> Work:
        """Starts: every rank's output becomes the reduction over the ranks' arrays.

        array: C-contiguous, float32, float64, float16, int8, uint8, int16, int32, int64 or bool, in
            this machine's order of bytes; any shape. It belongs to Sluice until the op is done.
        output: of the same shape and dtype, and apart from `array`; None: in place.
        reduction: "sum", "prod", "min", "max", "avg"; of integers also "band", "bor", "bxor",
            bitwise. Of bools the logical ones: "band", "bor", "bxor", and "min" and "max".
        nonzero_blocks: one bool per block of block_elements(dtype) elements; the others must hold
            nothing but +0. Spares the search for them.
        tag: equal on all ranks; tells calls of equal shape in swapped order apart.
        element_type: "bfloat16" for arrays of uint16 that hold such; else the dtype's.

        Raises TypeError, InvalidArgument.
        """
        handle = self._open()
        number = _element_type(_checked(array, "array").dtype, element_type, reduction)
        if output is None:
            output = array
        elif _checked(output, "output").shape != array.shape or output.dtype != array.dtype:
            raise _refusal(f"output is {_described(output)}, array {_described(array)}: they must"
                           " have the same shape and dtype")
        to = _writeable(output, "output")
        words = None
        if reduction == "sum" and nonzero_blocks is None and tag == 0:
            options = None  # the default: nothing is to be told
        else:
            if nonzero_blocks is not None:
                block = lib.sluice_block_elements(handle, number)
                words = _bitmap(nonzero_blocks, -(-array.size // block))
            options = _library.AllReduceOptions(
                ctypes.sizeof(_library.AllReduceOptions), _reduction(reduction),
                None if words is None else _address(words), 0 if words is None else words.size,
                _tag(tag, "all_reduce"))
        return self._start(Work(output, (array, words)), lib.sluice_all_reduce, handle,
                           to if output is array else _address(array), to, array.size, number,
                           options)

    def broadcast(self, array: NDArray[Any], root: int = 0, *, tag: int = 0) -> Work:
        """Starts: every rank's array becomes that of rank `root`, bit for bit.

        array: C-contiguous, of the same size in bytes on all ranks, elements of 1, 2, 4 or 8 bytes.
        """
        handle = self._open()
        _checked(array, "array", "broadcast")
        root = _integer("root", root, "broadcast: a rank")
        if not 0 <= root < self.world_size:
            raise _refusal(f"root {root}; 0..{self.world_size - 1} expected", "broadcast")
        number = _moved_type(array.dtype, "broadcast")
        to = _writeable(array, "array", "broadcast")
        return self._start(Work(array, ()), lib.sluice_broadcast, handle, to, array.size, number,
                           root, _tag(tag, "broadcast"))

    def all_gather(self, array: NDArray[Any], output: NDArray[Any] | None = None, *,
                   counts: Sequence[int] | None = None, tag: int = 0) -> Work:
        """Starts: every rank's output becomes the ranks' arrays one after the other, bit for bit.

        array: C-contiguous, elements of 1, 2, 4 or 8 bytes, of the same dtype on all ranks. It may
            lie in its place of `output`, else they do not overlap.
        output: of the same dtype, with as many elements as all arrays have; None: a new one, of
            shape (world_size, *array.shape) without `counts`, flat with them.
        counts: the elements of each rank's array, the same on all ranks; None: all have as many.
        """
        handle = self._open()
        _checked(array, "array", "all_gather")
        number = _moved_type(array.dtype, "all_gather")
        sizes = np.array([array.size] * self.world_size if counts is None else
                         [_integer("counts", n, "all_gather: integers") for n in counts], np.int64)
        if (sizes.shape != (self.world_size,) or sizes.min() < 0
                or sizes[self.rank] != array.size):
            raise _refusal(f"counts is {counts}; {self.world_size} of them expected, none below 0,"
                           f" and that of rank {self.rank} to be {array.size}, its array's",
                           "all_gather")
        if output is None:
            shape = (self.world_size, *array.shape) if counts is None else (int(sizes.sum()),)
            output = np.empty(shape, array.dtype)
        elif (_checked(output, "output", "all_gather").size != sizes.sum()
              or output.dtype != array.dtype):
            raise _refusal(f"output is {_described(output)}; {sizes.sum()} elements of"
                           f" {array.dtype} expected", "all_gather")
        to = _writeable(output, "output", "all_gather")
        return self._start(Work(output, (array,)), lib.sluice_all_gather, handle, _address(array),
                           to, _address(sizes), sizes.size, number, _tag(tag, "all_gather"))

    def barrier(self) -> Work:
        """Starts: done when every rank has called it."""
        return self._start(Work(None, ()), lib.sluice_barrier, self._open())

    def leave(self) -> None:
        """Leaves the job in an orderly way, and waits for it. Raises Error of Status.ABORTED if ops
        were pending: then the job is aborted on all ranks."""
        call(lib.sluice_communicator_leave, self._open())

    def close(self) -> None:
        """Leaves the job if that was not done, and frees what it took."""
        self._finalizer()

    def _open(self) -> ctypes.c_void_p:
        if not self._finalizer.alive:
            raise InvalidArgument("the Communicator is closed", Status.INVALID_ARGUMENT)
        return self._handle

    def _start(self, work: Work, function: Any, *arguments: Any) -> Work:
        """The arrays are kept from before the op begins: Ctrl-C may come at any moment, and other
        threads may start ops."""
        while self._pending and (oldest := self._pending[0])._is_over():
            try:
                self._pending.remove(oldest)
            except ValueError:  # another thread was faster
                pass
        self._pending.append(work)
        try:
            call(function, *arguments, work._reference)
        except Error:
            self._pending.remove(work)
            raise
        work._began = True
        return work

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()


class Work:
    """A started op."""

    def __init__(self, output: NDArray[Any] | None, kept: tuple[Any, ...]):
        self._handle = ctypes.c_void_p()  # null until it has begun
        self._reference = ctypes.byref(self._handle)
        self._began = False
        self._output = output
        self._kept = kept  # what the op reads

    def done(self) -> bool:
        """Whether it has ended, well or with an error."""
        done: int = lib.sluice_work_done(self._handle)
        return done == 1

    def _is_over(self) -> bool:
        return self._began and self.done()

    def wait(self, timeout: float | None = None) -> NDArray[Any] | None:
        """Until it is done; the output array, None of a barrier.

        timeout: in seconds; WaitTimeout after it, and the op goes on. Raises the op's Error, every
        time. KeyboardInterrupt ends the wait, not the op.
        """
        left = _library.FOREVER if timeout is None else int(timeout * 1e9)
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

    @property
    def statistics(self) -> OpStatistics:
        """Raises InvalidArgument while it is not done."""
        cost = _library.OpStatistics()
        call(lib.sluice_work_statistics, self._handle, ctypes.byref(cost), ctypes.sizeof(cost))
        return OpStatistics(**{name: getattr(cost, name) for name, *_ in cost._fields_})

    def __del__(self, destroy: Any = lib.sluice_work_destroy) -> None:
        destroy(self._handle)


def _destroy(handle: ctypes.c_void_p, pending: collections.deque[Work], _: Context) -> None:
    lib.sluice_communicator_destroy(handle)  # every op is done now: their arrays may go
    pending.clear()


def _refusal(why: str, caller: str = "all_reduce") -> InvalidArgument:
    return InvalidArgument(f"{caller}: {why}", Status.INVALID_ARGUMENT)


def _tag(tag: int, caller: str) -> int:
    tag = _integer("tag", tag, caller + ": an integer")
    if not 0 <= tag < 1 << 64:
        raise _refusal(f"tag {tag}; 0..2^64-1 expected", caller)
    return tag


def _described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _checked(array: NDArray[Any], name: str, caller: str = "all_reduce") -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{caller}: {name} is a {type(array).__name__}; a numpy.ndarray expected")
    if not array.flags.c_contiguous:
        raise _refusal(f"{name} is not contiguous (strides {array.strides}); a C-contiguous one"
                       " expected, as numpy.ascontiguousarray makes", caller)
    return array


def _writeable(array: NDArray[Any], name: str, caller: str = "all_reduce") -> int:
    """Its address."""
    if not array.flags.writeable:
        raise _refusal(f"{name} is read-only", caller)
    return _address(array)


def _address(array: NDArray[Any]) -> int:
    if array.size and array.flags.writeable and array.dtype.kind in "fiu":
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


@functools.cache
def _moved_type(dtype: np.dtype[Any], caller: str) -> int:
    if dtype.hasobject or dtype.itemsize not in _MOVED:
        raise _refusal(f"dtype {dtype}; elements of 1, 2, 4 or 8 bytes expected", caller)
    number: int = lib.sluice_parse_element_type(_MOVED[dtype.itemsize].encode())
    return number


@functools.cache
def _element_type(dtype: np.dtype[Any], given: str | None, reduction: str = "sum") -> int:
    name = _TYPES.get(dtype.name, "") if dtype.isnative else ""
    if dtype == np.bool_ and reduction in ("band", "bor", "bxor", "min", "max"):
        name = "uint8"
    if given is not None:
        bits = given == "bfloat16" and dtype == np.uint16
        name = given if bits or given == name else ""
    number: int = lib.sluice_parse_element_type(name.encode())
    if number == 0:
        stands = "" if given is None else f" with element_type {given!r}"
        raise _refusal(f"dtype {dtype.str if not dtype.isnative else dtype.name}{stands}; float32,"
                       " float64, float16, int8, uint8, int16, int32 or int64 in this machine's"
                       " order expected, uint16 with element_type 'bfloat16', or bool for a logical"
                       " reduction")
    return number


@functools.cache
def _reduction(name: str) -> int:
    number: int = lib.sluice_parse_reduction(name.encode())
    if number == 0:
        raise _refusal(f"reduction {name!r}; 'sum', 'prod', 'min', 'max', 'avg', 'band', 'bor' or"
                       " 'bxor' expected")
    return number


def _bitmap(blocks: NDArray[np.bool_], count: int) -> NDArray[np.uint64]:
    """Words of 64 bits, from a bool per block."""
    if not isinstance(blocks, np.ndarray):
        raise TypeError(f"all_reduce: nonzero_blocks is a {type(blocks).__name__}; a numpy.ndarray"
                        " expected")
    if blocks.dtype != np.bool_ or blocks.shape != (count,):
        raise _refusal(f"nonzero_blocks is {_described(blocks)}; a bool for each of the array's"
                       f" {count} blocks expected")
    words = np.zeros((blocks.size + 63) // 64, "<u8")
    packed = np.packbits(blocks, bitorder="little")
    words.view(np.uint8)[:packed.size] = packed
    return words
