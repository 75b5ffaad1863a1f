"""What a communication hook keeps from step to step."""
import torch
import torch.distributed as dist


class BucketTensor:
    """One tensor for each bucket of DistributedDataParallel, as its gradients and zero at first, of
    which each parameter has its part. DDP puts the parameters into other buckets after the first
    step: their parts move with them."""

    def __init__(self) -> None:
        self._whole: dict[tuple[int, ...], torch.Tensor] = {}  # by the ids of the parameters
        self._part: dict[int, torch.Tensor] = {}  # of those tensors, by the parameter's id

    def of(self, bucket: dist.GradBucket) -> torch.Tensor:
        """As many elements as the bucket's buffer. Whoever writes to it keeps what he wrote."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._whole:
            whole, place = torch.zeros_like(bucket.buffer()), 0
            for parameter in parameters:
                part = whole[place:place + parameter.numel()]
                before = self._part.get(id(parameter))
                if before is not None:
                    part.copy_(before)
                self._part[id(parameter)] = part
                place += parameter.numel()
            moved = set(key)
            self._whole = {k: v for k, v in self._whole.items() if moved.isdisjoint(k)}
            self._whole[key] = whole
        return self._whole[key]

    def of_parameter(self, parameter: torch.Tensor) -> torch.Tensor:
        """Its part, flat. KeyError before its first bucket."""
        return self._part[id(parameter)]
