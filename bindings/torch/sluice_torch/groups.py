"""What groups of this backend have beside c10d's calls.

In PyTorch 1.13 a process group is its backend. In PyTorch 2 it has one backend for each kind of
device, which it hides. These functions take a group of either.
"""
from __future__ import annotations

import torch
import torch.distributed as dist

from sluice_torch import _backend

__all__ = ["all_reduce_encoded", "backend_of", "bytes_sent"]


def backend_of(group: dist.ProcessGroup | None, call: str) -> _backend.ProcessGroupSluice:
    """The backend of a group, of the default one if None. Raises ValueError, in the name of `call`,
    if Sluice has no part in it."""
    if group is None:
        group = dist.group.WORLD
    if not hasattr(group, "_get_backend"):
        candidates = [group]
    else:
        candidates = [group._get_backend(device) for device in group._device_types]
    for backend in candidates:
        if isinstance(backend, _backend.ProcessGroupSluice):
            return backend
    kinds = ", ".join(sorted({type(backend).__name__ for backend in candidates})) or "none"
    raise ValueError(f"sluice: {call}: the group's backend is {kinds}; sluice expected")


def bytes_sent(group: dist.ProcessGroup | None = None) -> int:
    """By this rank, for the operations of the group that ended well; UDP payload."""
    return backend_of(group, "bytes_sent").bytes_sent


def all_reduce_encoded(tensor: torch.Tensor, encoding: str,
                       group: dist.ProcessGroup | None = None, *,
                       block_elements: int = 0) -> dist.Work:
    """Averages a float32 tensor over the ranks, in place, in fewer bits on the wire.

    encoding: "float16", "bfloat16", "int8" or "int4".
    block_elements: that share a scale; 0: the group's.

    Raises ValueError if the tensor is not a dense one of float32, or the encoding is not known.
    """
    return backend_of(group, "all_reduce_encoded").all_reduce_encoded(tensor, encoding,
                                                                      block_elements)
