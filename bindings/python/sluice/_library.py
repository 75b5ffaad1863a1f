"""libsluice.so, loaded: its functions have the types of sluice.h, and errors are exceptions."""
from __future__ import annotations

import ctypes
import os
import re
import threading
from ctypes import POINTER, byref, c_int
from typing import Any

from sluice import _interface
from sluice._interface import Status

SONAME = "libsluice.so.0"
VARIABLE = "SLUICE_LIBRARY"
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", SONAME)  # of a wheel
PROCESSOR = ("ssse3", "sse4_1", "sse4_2", "popcnt")  # what DPDK is built for, as Linux names it


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


class _Error(_interface.sluice_error):
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


MAX_RANKS = 256


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
    for name, (result, arguments) in _interface.PLAIN.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, arguments in _interface.FALLIBLE.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, [*arguments, POINTER(_interface.sluice_error)]
    return library


lib = _load()


class _ThreadError(threading.local):
    """What the last call of a thread that failed has reported."""

    def __init__(self) -> None:
        self.error = _Error()
        self.reference = byref(self.error)


_thread = _ThreadError()


def call(function: Any, *arguments: Any) -> None:
    """A function of `FALLIBLE`; raises what it reports."""
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
