"""Arrays in memory that the ranks of this host may share."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice import _arrays
from sluice._library import lib


class _Memory:
    """What arrays, and their views, hold as their base: freed with the last of them."""

    def __init__(self, size: int):
        self._address = lib.sluice_allocate(size) if size < 1 << 63 else None
        if not self._address:
            raise MemoryError(f"no memory for {size} bytes")
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,),
                                    "data": (self._address, False)}

    def __del__(self, free: Any = lib.sluice_free) -> None:
        free(getattr(self, "_address", None))


def _shape_of(caller: str, shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    sizes = tuple(_arrays.integer("shape", size, f"{caller}: integers") for size in sizes)
    if any(size < 0 for size in sizes):
        raise _arrays.refusal(caller, f"shape is {shape!r}; no dimension below 0 expected")
    return sizes


def _new(caller: str, shape: Any, dtype: DTypeLike) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Its bytes, and the array of them."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise _arrays.refusal(caller, f"dtype {kind}; one without Python objects expected")
    sizes = _shape_of(caller, shape)
    raw = np.asarray(_Memory(math.prod(sizes) * kind.itemsize))
    return raw, np.ndarray(sizes, kind, raw)


def empty(shape: Any, dtype: DTypeLike = float) -> NDArray[Any]:
    """A new C-contiguous array, as numpy.empty makes it, its elements uninitialized, in memory
    where a job's ranks of this host sum it in place. Freed when it and all its views are gone.

    shape: an integer, or a tuple or list of them.
    dtype: any without Python objects.

    Raises InvalidArgument, MemoryError. A forked process has the array as it was; see memory.hpp.
    """
    return _new("empty", shape, dtype)[1]


def zeros(shape: Any, dtype: DTypeLike = float) -> NDArray[Any]:
    """The same with all bits 0."""
    raw, array = _new("zeros", shape, dtype)
    raw.fill(0)
    return array


class _Lent:
    """What arrays of memory that another object owns hold as their base."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self._owner = owner
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, "shape": shape,
                                    "data": (address, True)}


def lent(owner: Any, address: int | None, shape: tuple[int, ...],
         dtype: np.dtype[Any]) -> NDArray[Any]:
    """A read-only array of what `owner` frees when it goes, which so is not before the array."""
    if math.prod(shape) == 0:
        array = np.empty(shape, dtype)
        array.flags.writeable = False
        return array
    return np.asarray(_Lent(owner, address or 0, shape, dtype))
