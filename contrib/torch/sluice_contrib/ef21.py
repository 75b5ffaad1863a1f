"""EF21: a communication hook that sends how the gradients change.

    model.register_comm_hook(*sluice_contrib.ef21(sluice_torch.top_k(ratio=0.05)))

Each rank keeps an estimate of its own gradients. It sends the difference to them, as far as the
compressor lets it: the blocks that it chooses. The estimate follows what is sent. The average of
the ranks' estimates, to which every rank adds what arrives, stands in for that of the gradients:

    sent_i = C(gradients_i - estimate_i);  estimate_i += sent_i;  average += mean of sent_i

Richtarik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
Feedback", NeurIPS 2021. What is not sent is as it was some steps ago: this suits gradients that
change slowly, of large batches. Where one batch differs much from the next, error feedback, which
loses nothing, does better.
"""
import torch
import torch.distributed as dist

from sluice_torch.buckets import BucketTensor
from sluice_torch.hooks import Compressor, Hook, group_and_ranks, summed

__all__ = ["Estimates", "ef21"]


class Estimates:
    """What EF21 keeps: twice the gradients' size."""

    def __init__(self, compressor: Compressor):
        self.compressor = compressor
        self.mine = BucketTensor()  #: this rank's estimate of its own gradients
        self.average = BucketTensor()  #: of all ranks' estimates, the same on all

    def differences(self, bucket: dist.GradBucket, ranks: int) -> torch.Tensor:
        """In the bucket's buffer: this rank's part of their average over so many ranks."""
        mine = self.mine.of(bucket)
        bucket.buffer().sub_(mine)
        sent = self.compressor.compress(bucket, ranks)
        mine.add_(sent, alpha=ranks)
        return sent

    def received(self, bucket: dist.GradBucket, mean: torch.Tensor) -> torch.Tensor:
        """The bucket's buffer with the average. Where it is NaN or infinite, in one step alone: all
        ranks begin their estimates again there, with 0."""
        mine, average = self.mine.of(bucket), self.average.of(bucket)
        gradients = bucket.buffer().copy_(average.add_(mean))
        overflow = ~average.isfinite()
        if overflow.any():
            average[overflow] = 0
            mine[overflow] = 0
        return gradients


def ef21(compressor_and_hook: tuple[Compressor, Hook]) -> tuple[Estimates, Hook]:
    """From what top_k, threshold or random_k returns, with its options. All blocks travel in the
    compressor's `warm_up` steps. It must be new; its error feedback is switched off, since what is
    left out is still a difference in the next step.

    ValueError: it is no Compressor, has been used, or has a `wire_dtype`: it would round the
        average, and the ranks' own estimates would not follow.
    """
    compressor, _ = compressor_and_hook
    if not isinstance(compressor, Compressor):
        raise ValueError(f"ef21: the hook's state is a {type(compressor).__name__}; a Compressor"
                         " expected")
    if compressor.calls:
        raise ValueError(f"ef21: the compressor was called {compressor.calls} times before; a new"
                         " one expected")
    if compressor.wire_dtype is not None:
        raise ValueError(f"ef21: wire_dtype is {compressor.wire_dtype}; None expected")
    compressor.error_feedback = False
    return Estimates(compressor), _hook


# DDP wants these annotations, and not as texts.
def _hook(estimates: Estimates,
          bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    group, ranks = group_and_ranks(estimates.compressor)
    if bucket.buffer().is_sparse:  # of nn.Embedding(sparse=True): they name their rows already
        whole = bucket.buffer().div_(ranks)
        return summed(group, whole, lambda: whole)
    sent = estimates.differences(bucket, ranks)
    return summed(group, sent, lambda: estimates.received(bucket, sent))
