"""Compressors: which part of a gradient is sent now, and which stays in a residual for later.

    residual = np.zeros_like(gradients)  # once
    ...
    sent = sluice.compress.top_k(gradients, k, residual=residual, block_elements=256)
    job.all_reduce(gradients, nonzero_blocks=sent, block_elements=256).wait()

Arrays are C-contiguous float32, and are read and written in place. `residual` is added to the
gradients, and keeps what is not sent; without one, that is lost. NaN and infinity are sent at once,
whatever the rule, and leave no residual; zeros are never sent. compress.hpp of the C++ library has
the rest. No Context is needed. What does not fit raises InvalidArgument, and nothing is written.
"""
from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice import _arrays
from sluice._interface import sluice_block_compression
from sluice._library import call, lib

__all__ = ["ElementTopK", "elements", "k_for_union", "random_k", "threshold", "top_k",
           "top_k_ratio"]
Floats = NDArray[np.float32]


def threshold(gradients: Floats, norm: float, *, residual: Floats | None = None,
              out: Floats | None = None, block_elements: int = 256,
              divisor: float = 1) -> NDArray[np.bool_]:
    """Sends the blocks whose Euclidean norm is above `norm` (0 or more). Returns, here and in the
    next three, a bool per block: whether it is sent.

    residual: as many elements as gradients; zeros at first.
    out: where to write what is sent, and zeros elsewhere; None: over the gradients.
    block_elements: 1 or more; the last block may be short.
    divisor: of what is sent, not of the residual.
    """
    blocks = _Blocks("threshold", gradients, residual, out, block_elements, divisor)
    return blocks.compress(lib.sluice_compress_threshold, float(norm))


def top_k(gradients: Floats, k: int, *, residual: Floats | None = None,
          out: Floats | None = None, block_elements: int = 256,
          divisor: float = 1) -> NDArray[np.bool_]:
    """Sends the k blocks of the largest norms, of equal ones those that come first."""
    blocks = _Blocks("top_k", gradients, residual, out, block_elements, divisor)
    return blocks.compress(lib.sluice_compress_top_k, _count("top_k", "k", k))


def top_k_ratio(gradients: Floats, parameters: Floats, k: int, *, residual: Floats | None = None,
                out: Floats | None = None, block_elements: int = 256,
                divisor: float = 1) -> NDArray[np.bool_]:
    """Sends the k blocks with the largest ratio of their norm to that of their parameters."""
    blocks = _Blocks("top_k_ratio", gradients, residual, out, block_elements, divisor)
    weights = _floats("top_k_ratio", parameters, "parameters")
    if weights.size != gradients.size:
        raise _arrays.refusal("top_k_ratio", f"parameters is {_arrays.described(weights)};"
                              f" {gradients.size} elements expected")
    return blocks.compress(lib.sluice_compress_top_k_ratio, _arrays.address(weights),
                           _count("top_k_ratio", "k", k))


def random_k(gradients: Floats, k: int, *, seed: int, step: int, residual: Floats | None = None,
             out: Floats | None = None, block_elements: int = 256,
             divisor: float = 1) -> NDArray[np.bool_]:
    """Sends k blocks by chance: the same ones on all ranks that give the same sizes, seed and step,
    both 0..2^64-1."""
    blocks = _Blocks("random_k", gradients, residual, out, block_elements, divisor)
    return blocks.compress(lib.sluice_compress_random_k, _count("random_k", "k", k),
                           _count("random_k", "seed", seed), _count("random_k", "step", step))


def elements(gradients: Floats, magnitude: float, *,
             residual: Floats | None = None) -> tuple[NDArray[np.uint32], Floats]:
    """Takes the elements whose magnitude is `magnitude` (0 or more) or above out of gradients +
    residual. Returns their keys, which rise, and their values; gradients stay as they are."""
    found = _Elements("elements", gradients, residual)
    return found.compress(lib.sluice_compress_elements, float(magnitude))


class ElementTopK:
    """The k largest elements of one array in each step; not for two threads at once.

    bucket_elements: the array is cut into buckets of so many, each with its own k; 0: it is not.
    exact_every: every so many calls, and in the first, exactly those are taken; calls between take
        what the threshold of the last exact one lets through.
    """

    def __init__(self, k: int, *, bucket_elements: int = 0, exact_every: int = 1):
        self._handle = c_void_p()
        call(lib.sluice_element_top_k_create, _count("ElementTopK", "k", k),
             _count("ElementTopK", "bucket_elements", bucket_elements),
             _count("ElementTopK", "exact_every", exact_every, 32), byref(self._handle))

    def compress(self, gradients: Floats, *,
                 residual: Floats | None = None) -> tuple[NDArray[np.uint32], Floats]:
        """As elements()."""
        found = _Elements("compress", gradients, residual)
        return found.compress(lib.sluice_element_top_k_compress, first=self._handle)

    def set_k(self, k: int) -> None:
        """Another k makes the next call exact."""
        call(lib.sluice_element_top_k_set_k, self._handle, _count("set_k", "k", k))

    def __del__(self, destroy: Any = lib.sluice_element_top_k_destroy) -> None:
        destroy(getattr(self, "_handle", None))


def k_for_union(ranks: int, units: int, unit_bytes: int, target_bytes: int, *, own: int = 0,
                in_union: int = 0) -> int:
    """A k for which the union of the ranks' blocks, or elements, takes about `target_bytes`.

    units: that the array has, each of `unit_bytes` on the wire, headers included.
    own, in_union: the sizes of an earlier step, on a rank and of the union; 0 and 0: none is known,
        and the ranks' choices are taken for independent.
    """
    k = c_uint64()
    numbers = [_count("k_for_union", name, value, bits) for name, value, bits in (
        ("ranks", ranks, 32), ("units", units, 64), ("unit_bytes", unit_bytes, 64),
        ("target_bytes", target_bytes, 64), ("own", own, 64), ("in_union", in_union, 64))]
    call(lib.sluice_k_for_union, *numbers, byref(k))
    return k.value


def _count(caller: str, name: str, value: int, bits: int = 64) -> int:
    value = _arrays.integer(name, value, caller + ": an integer")
    if not 0 <= value < 1 << bits:
        raise _arrays.refusal(caller, f"{name} {value}; 0..2^{bits}-1 expected")
    return value


def _floats(caller: str, array: Floats, name: str) -> Floats:
    _arrays.checked(caller, array, name)
    if array.dtype != np.float32:
        raise _arrays.refusal(caller, f"{name} is {_arrays.described(array)}; float32 of this"
                              " machine's order expected")
    return array


def _residual(caller: str, residual: Floats | None, size: int) -> int | None:
    """Its address."""
    if residual is None:
        return None
    if _floats(caller, residual, "residual").size != size:
        raise _arrays.refusal(caller, f"residual is {_arrays.described(residual)}; {size} elements"
                              " expected")
    return _arrays.writeable(caller, residual, "residual")


class _Blocks:
    """The arguments of a block compressor, checked."""

    def __init__(self, caller: str, gradients: Floats, residual: Floats | None, out: Floats | None,
                 block_elements: int, divisor: float):
        size = _floats(caller, gradients, "gradients").size
        written, name = (gradients, "gradients") if out is None else (out, "out")
        if _floats(caller, written, name).size != size:
            raise _arrays.refusal(caller, f"out is {_arrays.described(written)}; {size} elements"
                                  " expected")
        if _count(caller, "block_elements", block_elements, 32) == 0:
            raise _arrays.refusal(caller, "block_elements 0; 1 or more expected")
        self._count = -(-size // block_elements)
        self._words = np.zeros(-(-self._count // 64), "<u8")
        self._kept = (gradients, residual, out)  # as long as the addresses are in use
        self._given = sluice_block_compression(
            size=ctypes.sizeof(sluice_block_compression), gradients=_arrays.address(gradients),
            residual=_residual(caller, residual, size),
            out=_arrays.writeable(caller, written, name), count=size,
            sent_blocks=_arrays.address(self._words), sent_words=self._words.size,
            block_elements=block_elements, divisor=divisor)

    def compress(self, function: Any, *arguments: Any) -> NDArray[np.bool_]:
        call(function, byref(self._given), *arguments, None)
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[:self._count].astype(np.bool_)


class _Elements:
    """The arguments of an element compressor, checked, and what it returns."""

    def __init__(self, caller: str, gradients: Floats, residual: Floats | None):
        size = _floats(caller, gradients, "gradients").size
        self._kept = (gradients, residual)
        self._given = (_arrays.address(gradients), _residual(caller, residual, size), size)
        self._handle = lib.sluice_elements_create()
        if not self._handle:
            raise MemoryError("no memory for the elements")

    def compress(self, function: Any, *arguments: Any,
                 first: Any = None) -> tuple[NDArray[np.uint32], Floats]:
        before = () if first is None else (first,)
        call(function, *before, *self._given, *arguments, self._handle)
        keys, values = ctypes.POINTER(c_uint32)(), ctypes.POINTER(ctypes.c_float)()
        count = lib.sluice_elements_get(self._handle, byref(keys), byref(values))
        if count == 0:
            return np.empty(0, np.uint32), np.empty(0, np.float32)
        return (np.ctypeslib.as_array(keys, (count,)).copy(),
                np.ctypeslib.as_array(values, (count,)).copy())

    def __del__(self, destroy: Any = lib.sluice_elements_destroy) -> None:
        destroy(getattr(self, "_handle", None))
