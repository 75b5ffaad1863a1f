"""Tensors in memory that the ranks of this host may share."""
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from sluice_torch import _backend

__all__ = ["shared_memory"]


@contextlib.contextmanager
def shared_memory() -> Iterator[None]:
    """Within it CPU tensors that this thread makes, of 4 KiB or more, lie in memory where a
    group's ranks of this host sum them in place, unless SLUICE_HOST_LEVEL=0.

        with sluice_torch.shared_memory():
            activations = torch.empty(1_000_000)

    Works before and after the group is made; scopes may nest. The gradient buckets of
    DistributedDataParallel need none: they lie there once there is a group. A process
    that is forked, as a DataLoader's worker, has the tensors as they were, and what it writes is
    its own; but what its parent writes to them later, or their end there, may show in it.

    Raises RuntimeError if another library's CPU allocator has precedence.
    """
    _backend.begin_shared_tensors()
    try:
        yield
    finally:
        _backend.end_shared_tensors()


def _within(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def shared(*arguments: Any, **options: Any) -> Any:
        if not _backend.shares_memory():
            return method(*arguments, **options)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(RuntimeError):  # then they are copied
                stack.enter_context(shared_memory())
            return method(*arguments, **options)
    return shared


@functools.cache
def share_buckets() -> None:
    """Has DistributedDataParallel make its buckets there: at first, and once more when it has seen
    in which order gradients come. PyTorch has no hook for that, only for whole allocators, and not
    every tensor is better there. Where its names change, buckets are as all tensors."""
    with contextlib.suppress(RuntimeError), shared_memory():
        pass  # the allocator is there, also for what is made in the library
    for name in ("__init__", "_rebuild_buckets"):
        method = getattr(dist.Reducer, name, None)
        if method is not None:
            setattr(dist.Reducer, name, _within(method))
