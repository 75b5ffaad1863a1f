"""libsluice.so as ctypes sees it: sluice.h's functions and structs, its errors as exceptions."""
from __future__ import annotations

import ctypes
import enum
import os
import re
import threading
from ctypes import (POINTER, Structure, byref, c_char, c_char_p, c_double, c_float, c_int, c_int32,
                    c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any

SONAME = "libsluice.so.0"
VARIABLE = "SLUICE_LIBRARY"
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", SONAME)  # of a wheel
PROCESSOR = ("ssse3", "sse4_1", "sse4_2", "popcnt")  # what DPDK is built for, as Linux names it
FOREVER = 2**63 - 1


class Status(enum.IntEnum):
    """What came of a call: sluice_status."""
    OK = 0
    INVALID_ARGUMENT = 1
    UNAVAILABLE = 2
    AGGREGATOR_LOST = 3
    WORKER_LOST = 4
    FORMATION_FAILED = 5
    OP_MISMATCH = 6
    RANK_LEFT = 7
    RANK_RESTARTED = 8
    QUOTA = 9
    ABORTED = 10
    PROTOCOL = 11
    TIMEOUT = 12
    NOT_AUTHENTICATED = 13
    OP_TIMED_OUT = 14


class Error(RuntimeError):
    """What went wrong with Sluice; `str()` is one line for a person.

    status: of which kind it is.
    rank: the rank at fault, where one is.
    op: the op that it hit, counted from 0 in call order, where it hit one.
    last_heard: of a lost rank: how many seconds it had not been heard then.
    """

    def __init__(self, message: str, status: Status, rank: int | None = None,
                 op: int | None = None, last_heard: float | None = None):
        super().__init__(message)
        self.status = status
        self.rank = rank
        self.op = op
        self.last_heard = last_heard


class InvalidArgument(Error, ValueError):
    """A setting or argument is out of its range; nothing was started."""


class WaitTimeout(Error, TimeoutError):
    """The bound of a wait has passed; the op goes on."""


def tag_of_dtype(name: str) -> int:
    """Of a dtype that the library does not know, by NumPy's name, e.g. ">f8": its first bytes. So
    an error that has it can be read."""
    return int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "big")


def _with_dtypes(message: str) -> str:
    """With dtypes in place of their tags. One that the library knows has none."""
    found = re.search(r"has tag ([0-9]{1,20})(, rank [0-9]+ has )([0-9]{1,20})", message)
    if found is None:
        return message
    names = [int(found[i]).to_bytes(8, "big").rstrip(b"\0") for i in (1, 3)]
    if not all(re.fullmatch(rb"[<>|=][?A-Za-z][ -~]*|", name) for name in names):
        return message
    one, other = (f"dtype {name.decode()}" if name else "another dtype" for name in names)
    return f"{message[:found.start()]}has {one}{found[2]}{other}{message[found.end():]}"


class _Error(Structure):
    _fields_ = [("status", c_int), ("rank", c_int32), ("op", c_int64), ("last_heard_ms", c_int64),
                ("message", c_char * 488)]

    def exception(self) -> Error:
        try:
            status = Status(self.status)
        except ValueError:  # of a newer library
            return Error(f"{self.message.decode('utf-8', 'replace')} (status {self.status})",
                         Status.PROTOCOL)
        kind = {Status.INVALID_ARGUMENT: InvalidArgument, Status.TIMEOUT: WaitTimeout}
        message = self.message.decode("utf-8", "replace")
        return kind.get(status, Error)(
            _with_dtypes(message) if status == Status.OP_MISMATCH else message, status,
            None if self.rank < 0 else self.rank, None if self.op < 0 else self.op,
            None if self.last_heard_ms < 0 else self.last_heard_ms / 1000)


class ReduceOptions(Structure):
    """sluice_reduce_options."""
    _fields_ = [("size", c_size_t), ("reduction", c_int), ("nonzero_blocks", c_void_p),
                ("nonzero_words", c_size_t), ("tag", c_uint64), ("block_elements", c_uint16),
                ("encoding", c_uint16), ("reserved_1", c_uint32), ("rounding_seed", c_uint64)]


class SparseTensor(Structure):
    """sluice_sparse_tensor."""
    _fields_ = [("size", c_size_t), ("keys", c_void_p), ("values", c_void_p), ("count", c_uint64),
                ("row_elements", c_uint64), ("type", c_int)]


class SparseOptions(Structure):
    """sluice_sparse_options."""
    _fields_ = [("size", c_size_t), ("reduction", c_int), ("combine", c_int32),
                ("threshold", c_double), ("result_bytes", c_uint64), ("tag", c_uint64),
                ("encoding", c_uint16), ("reserved_0", c_uint16), ("reserved_1", c_uint32),
                ("rounding_seed", c_uint64)]


class BlockCompression(Structure):
    """sluice_block_compression."""
    _fields_ = [("size", c_size_t), ("gradients", c_void_p), ("residual", c_void_p),
                ("out", c_void_p), ("count", c_uint64), ("sent_blocks", c_void_p),
                ("sent_words", c_size_t), ("block_elements", c_uint32), ("divisor", c_float)]


class OpStatistics(Structure):
    """sluice_op_statistics."""
    _fields_ = [(name, c_uint64) for name in (
        "duration_ns", "blocks", "blocks_sent", "blocks_received", "packets_sent",
        "packets_received", "bytes_sent", "bytes_received", "retransmissions")]


class JobStatistics(Structure):
    """sluice_job_statistics."""
    _fields_ = [(name, c_uint64) for name in (
        "ops_completed", "ops_failed", "ops_pending", "packets_sent", "packets_received",
        "packets_dropped", "retransmissions", "narrowed_by_loss", "narrowed_by_delay", "rejoins",
        "rounds_replayed")]


MAX_RANKS = 256
_ERROR = POINTER(_Error)
_HANDLE = POINTER(c_void_p)
_BLOCKS = POINTER(BlockCompression)
_FALLIBLE: dict[str, list[Any]] = {  # without the error, which comes last
    "sluice_options_from_environment": [c_void_p],
    "sluice_options_set": [c_void_p, c_char_p, c_char_p],
    "sluice_options_set_interrupt": [c_void_p, POINTER(c_int)],
    "sluice_context_share": [c_void_p, _HANDLE],
    "sluice_context_close": [c_void_p],
    "sluice_context_start_timeline": [c_void_p, c_char_p],
    "sluice_context_stop_timeline": [c_void_p],
    "sluice_communicator_join": [c_void_p, c_void_p, _HANDLE],
    "sluice_communicator_leave": [c_void_p],
    "sluice_communicator_abort": [c_void_p, c_char_p],
    "sluice_communicator_failure": [c_void_p],
    "sluice_communicator_stragglers": [c_void_p, POINTER(c_uint16), c_size_t, POINTER(c_size_t)],
    "sluice_communicator_statistics": [c_void_p, POINTER(JobStatistics), c_size_t],
    "sluice_all_reduce": [c_void_p, c_void_p, c_void_p, c_uint64, c_int,
                          POINTER(ReduceOptions), _HANDLE],
    "sluice_broadcast": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, _HANDLE],
    "sluice_all_gather": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_uint64,
                          _HANDLE],
    "sluice_reduce": [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int32,
                      POINTER(ReduceOptions), _HANDLE],
    "sluice_reduce_scatter": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int,
                              POINTER(ReduceOptions), _HANDLE],
    "sluice_gather": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int32, c_uint64,
                      _HANDLE],
    "sluice_scatter": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int32, c_uint64,
                       _HANDLE],
    "sluice_all_to_all": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_uint64,
                          _HANDLE],
    "sluice_send": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, _HANDLE],
    "sluice_recv": [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_uint64, _HANDLE],
    "sluice_barrier": [c_void_p, _HANDLE],
    "sluice_split": [c_void_p, c_int32, c_int32, _HANDLE],
    "sluice_duplicate": [c_void_p, _HANDLE],
    "sluice_communicator_join_split": [c_void_p, c_void_p, _HANDLE],
    "sluice_sparse_all_reduce": [c_void_p, POINTER(SparseTensor), c_uint64, POINTER(SparseOptions),
                                 _HANDLE],
    "sluice_work_sparse_sums": [c_void_p, c_int, _HANDLE, _HANDLE, POINTER(c_uint64)],
    "sluice_work_sparse_dense": [c_void_p, c_void_p, c_uint64, c_int],
    "sluice_work_sparse_rejected": [c_void_p, POINTER(c_uint64)],
    "sluice_work_stragglers": [c_void_p, POINTER(c_uint16), c_size_t, POINTER(c_size_t)],
    "sluice_work_wait": [c_void_p, c_int64],
    "sluice_work_set_timeout": [c_void_p, c_uint64],
    "sluice_work_statistics": [c_void_p, POINTER(OpStatistics), c_size_t],
    "sluice_completion_queue_add": [c_void_p, c_void_p, c_uint64],
    "sluice_completion_queue_next": [c_void_p, c_int64, POINTER(c_uint64)],
    "sluice_completion_queue_descriptor": [c_void_p, POINTER(c_int)],
    "sluice_compress_threshold": [_BLOCKS, c_double, c_void_p],
    "sluice_compress_top_k": [_BLOCKS, c_uint64, c_void_p],
    "sluice_compress_top_k_ratio": [_BLOCKS, c_void_p, c_uint64, c_void_p],
    "sluice_compress_random_k": [_BLOCKS, c_uint64, c_uint64, c_uint64, c_void_p],
    "sluice_compress_elements": [c_void_p, c_void_p, c_uint64, c_float, c_void_p],
    "sluice_element_top_k_create": [c_uint64, c_uint64, c_uint32, _HANDLE],
    "sluice_element_top_k_set_k": [c_void_p, c_uint64],
    "sluice_element_top_k_compress": [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p],
    "sluice_global_top_k_create": [c_uint64, c_uint32, c_int, c_uint64, c_uint64, _HANDLE],
    "sluice_global_top_k_start": [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, _HANDLE],
    "sluice_global_top_k_finish": [c_void_p, c_void_p, c_uint64, POINTER(c_uint64)],
    "sluice_global_top_k_set_k": [c_void_p, c_uint64],
    "sluice_global_top_k_forget": [c_void_p],
    "sluice_k_for_union": [c_uint32, c_uint64, c_uint64, c_uint64, c_uint64, c_uint64,
                           POINTER(c_uint64)],
}
_PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "sluice_version": (c_char_p, []),
    "sluice_build": (c_char_p, []),
    "sluice_options_create": (c_void_p, []),
    "sluice_options_destroy": (None, [c_void_p]),
    "sluice_communicator_destroy": (None, [c_void_p]),
    "sluice_communicator_note_exception": (None, [c_void_p]),
    "sluice_communicator_rank": (c_int32, [c_void_p]),
    "sluice_communicator_world_size": (c_int32, [c_void_p]),
    "sluice_communicator_job_id": (c_uint32, [c_void_p]),
    "sluice_parse_element_type": (c_int, [c_char_p]),
    "sluice_parse_reduction": (c_int, [c_char_p]),
    "sluice_allocate": (c_void_p, [c_size_t]),
    "sluice_free": (None, [c_void_p]),
    "sluice_op_block_elements": (c_uint32, [c_void_p, c_int, c_uint16]),
    "sluice_work_done": (c_int32, [c_void_p]),
    "sluice_work_progress": (c_double, [c_void_p]),
    "sluice_work_destroy": (None, [c_void_p]),
    "sluice_completion_queue_create": (c_void_p, []),
    "sluice_completion_queue_destroy": (None, [c_void_p]),
    "sluice_completion_queue_interrupt": (None, [c_void_p]),
    "sluice_elements_create": (c_void_p, []),
    "sluice_elements_get": (c_size_t, [c_void_p, c_void_p, c_void_p]),
    "sluice_elements_destroy": (None, [c_void_p]),
    "sluice_element_top_k_destroy": (None, [c_void_p]),
    "sluice_global_top_k_threshold": (c_float, [c_void_p]),
    "sluice_global_top_k_destroy": (None, [c_void_p]),
}


def _check_processor() -> None:
    """On another one the library would end the process by a signal, or not be loaded."""
    machine = os.uname().machine
    if machine != "x86_64":
        raise ImportError(f"sluice: the processor is {machine}; x86_64 expected")
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), None)
    except OSError:
        return  # then DPDK tells, when a Context is made
    missing = [name for name in PROCESSOR if flags is not None and name not in flags]
    if missing:
        raise ImportError("sluice: the processor lacks " + ", ".join(missing)
                          + "; x86_64 of 2009 or later (x86-64-v2) expected")


def _load() -> ctypes.CDLL:
    _check_processor()
    path = os.environ.get(VARIABLE) or (OWN if os.path.exists(OWN) else SONAME)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"Sluice's library is not found: {error}; install it where the loader"
                          f" looks, or set {VARIABLE} to its path") from None
    for name, (result, arguments) in _PLAIN.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, arguments in _FALLIBLE.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, [*arguments, _ERROR]
    return library


lib = _load()


class _ThreadError(threading.local):
    """What the last call of a thread that failed has reported."""

    def __init__(self) -> None:
        self.error = _Error()
        self.reference = byref(self.error)


_thread = _ThreadError()


def call(function: Any, *arguments: Any) -> None:
    """A function of `_FALLIBLE`; raises what it reports."""
    if function(*arguments, _thread.reference) != 0:
        raise _thread.error.exception()


_LOOK_S = 0.05  # how long a call may keep a signal's handler from running


def call_beside(interrupt: c_int, function: Any, *arguments: Any) -> None:
    """The same, of one that `interrupt` ends: while it waits, handlers of signals run. They do so
    on the main thread alone, which therefore leaves the call to another one. What a handler raises
    ends the call, and is raised when that has ended."""
    if threading.current_thread() is not threading.main_thread():
        return call(function, *arguments)
    raised: list[BaseException] = []
    ended = threading.Event()  # a Thread.join() that was interrupted takes its thread for ended

    def run() -> None:
        try:
            call(function, *arguments)
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="sluice join", daemon=True)
    try:
        thread.start()
        while not ended.wait(_LOOK_S):
            pass
    except BaseException:
        interrupt.value = 1
        if thread.ident is not None:
            ended.wait()
        raise
    if raised:
        raise raised[0]
