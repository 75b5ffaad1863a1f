"""Ok-Topk: a communication hook that sends single elements, and receives only the largest sums.

    model.register_comm_hook(*sluice_torch.ok_top_k(ratio=0.01))

Of each bucket every rank sends its largest elements, and the aggregators deliver the sums that
reach a threshold, which all ranks compute alike from the step before: about as many as one rank
sends. What a rank did not send, or sent to a sum that was not delivered, is added to its next
gradients. Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP
2022; sluice/global_top_k.hpp has the rest.

The result is the average over the ranks, as without a hook: the aggregators divide the sums by
their number, after which they compare them with the threshold. What is left out is not divided.

For float32 gradients on the CPU, and groups of the backend sluice.
"""
import math
from typing import Any, Optional

import torch
import torch.distributed as dist

from sluice_torch import _backend
from sluice_torch.buckets import BucketTensor, PerBucket
from sluice_torch.groups import backend_of
from sluice_torch.hooks import Hook, HookState, after, check_ratio, group_and_ranks, summed

__all__ = ["OkTopK", "ok_top_k"]


class OkTopK(HookState):
    """What was left out so far, and each bucket's threshold.

    ratio: above 0, at most 1: the share of a bucket's elements that a rank sends, rounded up, and
        of those of its average that should differ from zero. In a bucket's first steps more do.
    exact_every: steps per one in which a rank finds its largest elements exactly, 1 or more. More
        than 1 spares time and sends more.
    warm_up, group: as the Compressor's; warm-up steps are exact, and dense.
    """

    def __init__(self, ratio: float, exact_every: int = 1, warm_up: int = 0,
                 group: Optional[dist.ProcessGroup] = None):
        check_ratio(ratio)
        if not 1 <= exact_every < 2**32:
            raise ValueError(f"exact_every is {exact_every}; 1 to 2^32 - 1 expected")
        super().__init__(warm_up, group)
        self.ratio = ratio
        self.exact_every = exact_every
        self.elements = 0  #: of all buckets since the warm-up
        self.elements_sent = 0  #: of them by this rank
        self.elements_delivered = 0  #: of the averages, the same number on all ranks
        self.left_out = BucketTensor()  #: of this rank's gradients, for the next step
        self._sums = PerBucket(self._sums_of)

    def _sums_of(self, bucket: dist.GradBucket) -> Any:
        left_out = self.left_out.of(bucket)
        return _backend.TopKSums(left_out, math.ceil(self.ratio * left_out.numel()),
                                 self.exact_every)

    def average(self, bucket: dist.GradBucket, group: Any,
                ranks: int) -> torch.futures.Future[torch.Tensor]:
        """Their average over the ranks in the bucket's buffer. If the op fails, all of this rank's
        gradients are left out."""
        gradients = bucket.buffer()
        sums = self._sums.of(bucket)  # in the warm-up, too: it refuses what it cannot take
        if self.count_step(bucket):
            return summed(group, gradients.div_(ranks), lambda: gradients)

        def received() -> torch.Tensor:
            self.elements += gradients.numel()
            self.elements_sent += sums.sent
            self.elements_delivered += sums.delivered
            return gradients

        return after(backend_of(group, "ok_top_k").all_reduce_top_k(sums, gradients), received)

    def density(self) -> float:
        """The share of elements that this rank sent since the warm-up."""
        return self.elements_sent / self.elements if self.elements else 1.0

    def result_density(self) -> float:
        """The share of the averages' elements that were delivered since the warm-up."""
        return self.elements_delivered / self.elements if self.elements else 1.0

    def forget(self) -> None:
        """To be called on all ranks before they go on, where a step failed on some alone: the
        thresholds begin anew. What was left out stays."""
        for sums in self._sums:
            sums.forget()


def ok_top_k(ratio: float, **options: Any) -> tuple[OkTopK, Hook]:
    """The share `ratio` of each bucket's elements. `options`: OkTopK's.

    The hook raises ValueError for gradients that are not float32 on the CPU, and in a group of
    another backend; sparse ones are summed as they are.
    """
    return OkTopK(ratio, **options), _hook


# DDP wants these annotations, and not as texts.
def _hook(state: OkTopK, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    group, ranks = group_and_ranks(state)
    gradients = bucket.buffer()
    if gradients.is_sparse:  # of nn.Embedding(sparse=True): they name their rows already
        whole = gradients.div_(ranks)
        return summed(group, whole, lambda: whole)
    return state.average(bucket, group, ranks)
