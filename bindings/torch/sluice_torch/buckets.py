"""What a communication hook keeps from step to step."""
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

Kept = TypeVar("Kept")


class PerBucket(Generic[Kept]):
    """What `make` returns for each bucket of DistributedDataParallel. DDP puts the parameters into
    other buckets after the first step: they get another."""

    def __init__(self, make: Callable[[dist.GradBucket], Kept]):
        self._make = make
        self._kept: dict[tuple[int, ...], Kept] = {}  # by the ids of the parameters

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())

    def of(self, bucket: dist.GradBucket) -> Kept:
        key = tuple(map(id, bucket.parameters()))
        if key not in self._kept:
            made = self._make(bucket)
            moved = set(key)
            self._kept = {k: v for k, v in self._kept.items() if moved.isdisjoint(k)}
            self._kept[key] = made
        return self._kept[key]


class BucketTensor(PerBucket[torch.Tensor]):
    """One tensor for each bucket, as its gradients and zero at first, of which each parameter has
    its part. Where buckets change, their parts move with the parameters. It has as many elements as
    the bucket's buffer, and whoever writes to it keeps what he wrote."""

    def __init__(self) -> None:
        super().__init__(self._with_parts)
        self._part: dict[int, torch.Tensor] = {}  # of those tensors, by the parameter's id

    def _with_parts(self, bucket: dist.GradBucket) -> torch.Tensor:
        whole, place = torch.zeros_like(bucket.buffer()), 0
        for parameter in bucket.parameters():
            part = whole[place:place + parameter.numel()]
            before = self._part.get(id(parameter))
            if before is not None:
                part.copy_(before)
            self._part[id(parameter)] = part
            place += parameter.numel()
        return whole

    def of_parameter(self, parameter: torch.Tensor) -> torch.Tensor:
        """Its part, flat. KeyError before its first bucket."""
        return self._part[id(parameter)]
