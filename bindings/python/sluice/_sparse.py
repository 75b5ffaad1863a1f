"""What sparse sums take and return: pairs of keys and rows, and scipy.sparse matrices, whose stored
elements are such pairs. `caller` as in _arrays."""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice import _arrays
from sluice._interface import sluice_sparse_options, sluice_sparse_tensor

Keys = NDArray[np.uint64]
_MOST_KEYS = 2**64 - 2


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A rank's part of a sparse sum, checked."""
    keys: Keys
    values: NDArray[Any]  # a row per key
    key_bound: int
    combine: bool
    returned: Callable[[Keys, NDArray[Any]], Any]  # as what the sums are returned

    def tensor(self, number: int) -> sluice_sparse_tensor:
        """Its elements are of this type."""
        return sluice_sparse_tensor(
            size=ctypes.sizeof(sluice_sparse_tensor), keys=_arrays.address(self.keys),
            values=_arrays.address(self.values), count=self.keys.size,
            row_elements=math.prod(self.values.shape[1:]), type=number)


def pairs_of(caller: str, tensor: Any, key_bound: int | None, combine: bool,
             reduction: str) -> Pairs:
    scipy_sparse = sys.modules.get("scipy.sparse")  # whoever has a matrix of it has imported it
    if scipy_sparse is not None and scipy_sparse.issparse(tensor):
        if key_bound is not None:
            raise _arrays.refusal(caller, f"key_bound {key_bound}; None expected with a matrix,"
                                  " whose shape bounds the keys")
        return _pairs_of_matrix(caller, tensor, reduction)
    if not isinstance(tensor, (tuple, list)) or len(tensor) != 2:
        raise TypeError(f"{caller}: a pair of arrays (keys, values) or a scipy.sparse matrix"
                        f" expected, not a {type(tensor).__name__}")
    bound = _arrays.integer("key_bound", key_bound, caller + ": an integer")
    if not 1 <= bound <= _MOST_KEYS:
        raise _arrays.refusal(caller, f"key_bound {bound}; 1..2^64-2 expected")
    keys, values = _keys(caller, tensor[0]), _arrays.checked(caller, tensor[1], "values")
    if values.ndim == 0 or len(values) != keys.size:
        raise _arrays.refusal(caller, f"values is {_arrays.described(values)}; {keys.size} rows"
                              " expected, one for each key")
    return Pairs(keys, values, bound, bool(combine), _as_pair)


def options(caller: str, reduction: str, threshold: float, combine: bool, result_bytes: int,
            tag: int, encoding: str | None, rounding_seed: int) -> sluice_sparse_options:
    most = _arrays.integer("result_bytes", result_bytes, caller + ": an integer")
    if not 0 <= most < 1 << 64:
        raise _arrays.refusal(caller, f"result_bytes {most}; 0..2^64-1 expected")
    return sluice_sparse_options(
        size=ctypes.sizeof(sluice_sparse_options),
        reduction=_arrays.reduction_number(caller, reduction), combine=combine,
        threshold=_number(caller, "threshold", threshold), result_bytes=most,
        tag=_arrays.tag_of(caller, tag), encoding=_arrays.encoding_number(caller, encoding),
        rounding_seed=_arrays.seed_of(caller, rounding_seed))


def _number(caller: str, name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{caller}: a number expected, not {name} = {value!r}") from None


def _keys(caller: str, keys: NDArray[Any]) -> Keys:
    """As they are, if they have 64 bits."""
    _arrays.checked(caller, keys, "keys")
    if keys.ndim != 1 or keys.dtype.kind not in "iu":
        raise _arrays.refusal(caller, f"keys is {_arrays.described(keys)}; integers in one"
                              " dimension expected")
    if keys.dtype.kind == "i" and keys.size and keys.min() < 0:
        raise _arrays.refusal(caller, f"keys has {keys.min()}; 0 or more expected")
    whole = keys.dtype.itemsize == 8 and keys.dtype.isnative
    return keys.view(np.uint64) if whole else keys.astype(np.uint64)


def _as_pair(keys: Keys, values: NDArray[Any]) -> tuple[Keys, NDArray[Any]]:
    return keys, values


def _pairs_of_matrix(caller: str, matrix: Any, reduction: str) -> Pairs:
    """An element of a matrix is the sum of all that is stored for it."""
    if len(matrix.shape) != 2 or math.prod(matrix.shape) > _MOST_KEYS:
        raise _arrays.refusal(caller, f"the matrix has shape {matrix.shape}; two dimensions, and at"
                              " most 2^64-2 elements, expected")
    elements = matrix.tocoo(copy=False)
    keys = _keys_of(elements)
    combine = bool((keys[1:] <= keys[:-1]).any())
    if combine and reduction not in ("sum", "avg"):
        elements = elements.copy()
        elements.sum_duplicates()
        keys = _keys_of(elements)
    returned = functools.partial(_as_matrix, type(elements), matrix.format, matrix.shape)
    return Pairs(keys, np.ascontiguousarray(elements.data), max(1, math.prod(matrix.shape)),
                 combine, returned)


def _keys_of(elements: Any) -> Keys:
    """Of a matrix in coordinate format: the numbers of its elements, row after row."""
    keys: Keys = elements.row.astype(np.uint64)
    keys *= np.uint64(elements.shape[1])
    keys += elements.col.astype(np.uint64)
    return keys


def _as_matrix(coo: type, format_name: str, shape: tuple[int, int], keys: Keys,
               values: NDArray[Any]) -> Any:
    """In memory of its own, which may be written."""
    row, column = np.divmod(keys, np.uint64(max(1, shape[1])))
    elements = coo((values, (row.view(np.int64), column.view(np.int64))), shape,
                   copy=format_name == "coo")  # all other formats make a copy
    return elements.asformat(format_name)
