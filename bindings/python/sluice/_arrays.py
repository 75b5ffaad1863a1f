"""What collectives take: arrays, counts and options, checked. `caller` is the collective's name."""
from __future__ import annotations

import ctypes
import functools
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice import _library
from sluice._interface import Encoding, Status, sluice_reduce_options
from sluice._library import InvalidArgument, lib

_TYPES = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16",
          "int8": "int8", "uint8": "uint8", "int16": "int16", "int32": "int32",
          "int64": "int64"}  # NumPy's names -> Sluice's
_MOVED = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # what is not reduced is bits


def integer(name: str, value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} expected, not {name} = {value!r}") from None


def refusal(caller: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{caller}: {why}", Status.INVALID_ARGUMENT)


def tag_of(caller: str, tag: int) -> int:
    tag = integer("tag", tag, caller + ": an integer")
    if not 0 <= tag < 1 << 64:
        raise refusal(caller, f"tag {tag}; 0..2^64-1 expected")
    return tag


def block_elements_of(caller: str, count: int) -> int:
    """Of an op; 0: as many as the job has."""
    count = integer("block_elements", count, caller + ": an integer")
    if not 0 <= count <= 16384:
        raise refusal(caller, f"block_elements {count}; 0..16384 expected")
    return count


def rank_of(caller: str, name: str, rank: int, ranks: int) -> int:
    rank = integer(name, rank, caller + ": a rank")
    if not 0 <= rank < ranks:
        raise refusal(caller, f"{name} {rank}; 0..{ranks - 1} expected")
    return rank


def int32_of(caller: str, name: str, value: int) -> int:
    value = integer(name, value, caller + ": an integer")
    if not -(1 << 31) <= value < 1 << 31:
        raise refusal(caller, f"{name} {value}; -2^31..2^31-1 expected")
    return value


def root_of(caller: str, root: int, ranks: int) -> int:
    return rank_of(caller, "root", root, ranks)


def described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def checked(caller: str, array: NDArray[Any], name: str = "array") -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{caller}: {name} is a {type(array).__name__}; a numpy.ndarray expected")
    if not array.flags.c_contiguous:
        raise refusal(caller, f"{name} is not contiguous (strides {array.strides}); a C-contiguous"
                      " one expected, as numpy.ascontiguousarray makes")
    return array


def output_of(caller: str, output: NDArray[Any] | None, shape: tuple[int, ...], size: int,
              dtype: np.dtype[Any]) -> NDArray[Any]:
    """With so many elements of this dtype; a new one of this shape if none is given."""
    if output is None:
        return np.empty(shape, dtype)
    if checked(caller, output, "output").size != size or output.dtype != dtype:
        raise refusal(caller, f"output is {described(output)}; {size} elements of {dtype} expected")
    return output


def equal_part(caller: str, array: NDArray[Any], ranks: int) -> tuple[int, ...]:
    """The shape of what an array is to be cut into along its first dimension."""
    if array.ndim == 0 or array.shape[0] % ranks != 0:
        raise refusal(caller, f"array is {described(array)}; without counts, a first dimension"
                      f" that world_size = {ranks} divides expected")
    return (array.shape[0] // ranks, *array.shape[1:])


def counts_of(caller: str, counts: ArrayLike | None, shape: tuple[int, ...],
              equal: int) -> NDArray[np.int64]:
    """The elements of each part; None: so many of all."""
    if counts is None:
        return np.full(shape, equal, np.int64)
    given = np.asarray(counts)
    sizes = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    if sizes.shape != shape or (sizes < 0).any():
        raise refusal(caller, f"counts is {counts!r}; {' x '.join(map(str, shape))} integers"
                      " expected, none below 0")
    return np.ascontiguousarray(sizes)


def require_elements(caller: str, array: NDArray[Any], expected: int) -> None:
    if array.size != expected:
        raise refusal(caller, f"array is {described(array)}; by counts, {expected} elements"
                      " expected")


def writeable(caller: str, array: NDArray[Any], name: str = "array") -> int:
    """Its address."""
    if not array.flags.writeable:
        raise refusal(caller, f"{name} is read-only")
    return address(array)


def address(array: NDArray[Any]) -> int:
    if array.size and array.flags.writeable and array.dtype.kind in "fiu":
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


@functools.cache
def moved_type(caller: str, dtype: np.dtype[Any]) -> int:
    """The dtype's, where Sluice has it; all ranks must have the same: see moved_tag()."""
    if dtype.hasobject or dtype.itemsize not in _MOVED:
        raise refusal(caller, f"dtype {dtype}; elements of 1, 2, 4 or 8 bytes expected")
    name = _TYPES.get(dtype.newbyteorder("=").name, _MOVED[dtype.itemsize])
    number: int = lib.sluice_parse_element_type(name.encode())
    return number


def moved_tag(caller: str, tag: int, dtype: np.dtype[Any]) -> int:
    """Differs between dtypes, also of another byte order, of which moved_type() is the same."""
    tag = tag_of(caller, tag)
    is_known = dtype.isnative and dtype.name in _TYPES
    return tag if is_known else tag ^ _library.tag_of_dtype(dtype.str)


@functools.cache
def element_type(caller: str, dtype: np.dtype[Any], given: str | None,
                 reduction: str = "sum") -> int:
    name = _TYPES.get(dtype.name, "") if dtype.isnative else ""
    if dtype == np.bool_ and reduction in ("band", "bor", "bxor", "min", "max"):
        name = "uint8"
    if given is not None:
        bits = given == "bfloat16" and dtype == np.uint16
        name = given if bits or given == name else ""
    number: int = lib.sluice_parse_element_type(name.encode())
    if number == 0:
        stands = "" if given is None else f" with element_type {given!r}"
        raise refusal(caller, f"dtype {dtype.str if not dtype.isnative else dtype.name}{stands};"
                      " float32, float64, float16, int8, uint8, int16, int32 or int64 in this"
                      " machine's order expected, uint16 with element_type 'bfloat16', or bool for"
                      " a logical reduction")
    return number


def reduction_of(caller: str, array: NDArray[Any], reduction: str) -> str:
    """As the library knows it. Any byte of a bool but 0 is true: 2 and 4 have no bit in common, but
    a minimum that is true."""
    if array.dtype != np.bool_:
        return reduction
    if reduction == "bxor" and array.view(np.uint8).max(initial=0) > 1:
        raise refusal(caller, "array has bools of other bytes than 0 and 1; for a 'bxor', 0 and 1"
                      " expected")
    return {"band": "min", "bor": "max"}.get(reduction, reduction)


@functools.cache
def reduction_number(caller: str, name: str) -> int:
    number: int = lib.sluice_parse_reduction(name.encode())
    if number == 0:
        raise refusal(caller, f"reduction {name!r}; 'sum', 'prod', 'min', 'max', 'avg', 'band',"
                      " 'bor' or 'bxor' expected")
    return number


def _bitmap(caller: str, blocks: NDArray[np.bool_], count: int) -> NDArray[np.uint64]:
    """Words of 64 bits, from a bool per block."""
    if not isinstance(blocks, np.ndarray):
        raise TypeError(f"{caller}: nonzero_blocks is a {type(blocks).__name__}; a numpy.ndarray"
                        " expected")
    if blocks.dtype != np.bool_ or blocks.shape != (count,):
        raise refusal(caller, f"nonzero_blocks is {described(blocks)}; a bool for each of the"
                      f" array's {count} blocks expected")
    words = np.zeros((blocks.size + 63) // 64, "<u8")
    packed = np.packbits(blocks, bitorder="little")
    words.view(np.uint8)[:packed.size] = packed
    return words


_ENCODINGS: dict[str | None, int] = {
    None: Encoding.NONE, "float16": Encoding.FLOAT16, "bfloat16": Encoding.BFLOAT16,
    "int8": Encoding.INT8, "int4": Encoding.INT4}


def encoding_number(caller: str, encoding: str | None) -> int:
    if encoding not in _ENCODINGS:
        raise refusal(caller, f"encoding {encoding!r}; None, 'float16', 'bfloat16', 'int8' or"
                      " 'int4' expected")
    return _ENCODINGS[encoding]


def seed_of(caller: str, seed: int) -> int:
    seed = integer("rounding_seed", seed, caller + ": an integer")
    if not 0 <= seed < 1 << 64:
        raise refusal(caller, f"rounding_seed {seed}; 0..2^64-1 expected")
    return seed


def reduce_options(caller: str, reduction: str, nonzero_blocks: NDArray[np.bool_] | None,
                   blocks: int, block_elements: int, tag: int, encoding: str | None,
                   rounding_seed: int) -> tuple[sluice_reduce_options | None, Any]:
    """What is to be told, nothing if it is the default; and the bitmap, which must be kept."""
    if (reduction == "sum" and nonzero_blocks is None and block_elements == 0 and tag == 0
            and encoding is None and rounding_seed == 0):
        return None, None
    words = None if nonzero_blocks is None else _bitmap(caller, nonzero_blocks, blocks)
    return sluice_reduce_options(
        size=ctypes.sizeof(sluice_reduce_options), reduction=reduction_number(caller, reduction),
        nonzero_blocks=None if words is None else address(words),
        nonzero_words=0 if words is None else words.size, tag=tag_of(caller, tag),
        block_elements=block_elements, encoding=encoding_number(caller, encoding),
        rounding_seed=seed_of(caller, rounding_seed)), words
