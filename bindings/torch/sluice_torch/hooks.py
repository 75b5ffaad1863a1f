"""Communication hooks for DistributedDataParallel that send only some blocks of the gradients.

    model = DistributedDataParallel(module)
    model.register_comm_hook(*sluice_torch.top_k(ratio=0.01))

Each rank keeps the blocks that its rule chooses and sets the others to zero, which Sluice does not
send. What was left out is added to the next step's gradients (error feedback), so nothing is lost
for good: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018; in blocks as in OmniReduce,
SIGCOMM 2021. The result is the average over the ranks, as without a hook.

float32 gradients on the CPU are compressed by Sluice's library (sluice/compress.hpp), others by
tensor operations. The library sends a block with NaN or infinity whatever the rule, and none that
is zero.

The hooks work with every backend; only Sluice is faster with them. A compressor belongs to one
model: make another for each.
"""
import math
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.distributed as dist

from sluice_torch import _backend
from sluice_torch.buckets import BucketTensor

__all__ = ["Compressor", "bf16", "random_k", "threshold", "top_k"]

Hook = Callable[[Any, Any], torch.futures.Future]
Rule = Callable[[torch.Tensor, "Compressor"], torch.Tensor]
# From gradients, what was left out, ranks, number of blocks and compressor to the blocks sent.
OnePass = Callable[[torch.Tensor, Optional[torch.Tensor], int, int, "Compressor"], int]


class HookState:
    """What hooks have in common.

    warm_up: steps at first in which everything travels; 0 or more.
    group: of the model; None: the default group.
    """

    def __init__(self, warm_up: int, group: Optional[dist.ProcessGroup]):
        if warm_up < 0:
            raise ValueError(f"warm_up is {warm_up}; 0 or more expected")
        self.warm_up = warm_up
        self.group = group
        self.steps = 0  #: begun
        self._last_index = -1  # of a bucket

    def count_step(self, bucket: dist.GradBucket) -> bool:
        """Whether the bucket's step is one of the warm-up. Indices rise in a step. The first bucket
        may be sparse, and not seen here."""
        if self.steps == 0 or bucket.index() <= self._last_index:
            self.steps += 1
        self._last_index = bucket.index()
        return self.steps <= self.warm_up


class Compressor(HookState):
    """Which blocks travel, in what type, and what was left out so far.

    rule: from the blocks, a tensor [blocks, block_elements], and this compressor to a bool for each
        block: whether it travels; None: all do.
    block_elements: as the job's, so that a block left out is one not sent (SLUICE_BLOCK_ELEMENTS).
    error_feedback: whether what is left out, or rounded away, is added to the next gradients.
    wire_dtype: in which the gradients travel; None: their own.
    warm_up: steps at first in which all blocks travel, though in wire_dtype; 0 or more.
    group: of the model; None: the default group.
    """

    def __init__(self, rule: Optional[Rule], block_elements: int = 256, error_feedback: bool = True,
                 wire_dtype: Optional[torch.dtype] = None, warm_up: int = 0,
                 group: Optional[dist.ProcessGroup] = None):
        if block_elements < 1:
            raise ValueError(f"block_elements is {block_elements}; 1 or more expected")
        super().__init__(warm_up, group)
        self.rule = rule
        self.block_elements = block_elements
        self.error_feedback = error_feedback
        self.wire_dtype = wire_dtype
        self.calls = 0  #: buckets compressed: the same number on all ranks at the same call
        self.blocks = 0  #: of all of them
        self.blocks_kept = 0  #: by this rank
        self.weights: Optional[torch.Tensor] = None  #: of the bucket's elements, for the rule
        self._weights_of: Optional[Callable[[dist.GradBucket], Optional[torch.Tensor]]] = None
        self._one_pass: Optional[OnePass] = None  # the rule as the library has it
        self.left_out = BucketTensor()  #: of this rank's gradients, for the next step

    def compress(self, bucket: dist.GradBucket, ranks: int) -> torch.Tensor:
        """What travels of the bucket's gradients, which may be its buffer: this rank's part of the
        average over so many ranks."""
        warms_up = self.count_step(bucket)
        gradients = bucket.buffer()
        left_out = self.left_out.of(bucket) if self.error_feedback else None
        self.weights = self._weights_of(bucket) if self._weights_of is not None else None
        divisor = ranks if self.wire_dtype is None else 1
        blocks = -(-gradients.numel() // self.block_elements)
        self.blocks += blocks
        if self._one_pass is not None and not warms_up and self._fits_library(gradients):
            self.blocks_kept += self._one_pass(gradients, left_out, divisor, blocks, self)
        else:
            self.blocks_kept += self._select(gradients, left_out, None if warms_up else self.rule)
            gradients.div_(divisor)
        self.calls += 1
        return gradients if self.wire_dtype is None else self._rounded(gradients, left_out, ranks)

    def _select(self, gradients: torch.Tensor, left_out: Optional[torch.Tensor],
                rule: Optional[Rule]) -> int:
        """As the library does, by tensor operations."""
        if left_out is not None:
            gradients.add_(left_out)
            left_out.copy_(gradients)
        kept = self._zero_the_rest(gradients, rule)
        if left_out is not None:
            _forget_overflow(left_out.sub_(gradients))
        return kept

    def _rounded(self, gradients: torch.Tensor, left_out: Optional[torch.Tensor],
                 ranks: int) -> torch.Tensor:
        if left_out is not None:
            left_out.add_(gradients)
        sent = gradients.div_(ranks).to(self.wire_dtype)  # the sum may be too large for 16 bits
        if left_out is not None:  # what the division rounds, too
            _forget_overflow(left_out.sub_(sent, alpha=ranks))
        return sent

    def density(self) -> float:
        """The share of blocks that this rank kept up to now."""
        return self.blocks_kept / self.blocks if self.blocks else 1.0

    def _fits_library(self, gradients: torch.Tensor) -> bool:
        """Others are compressed by tensor operations, with the same rules."""
        return (gradients.dtype == torch.float32 and gradients.device.type == "cpu"
                and gradients.is_contiguous() and self.block_elements < 2**32)

    def _zero_the_rest(self, gradients: torch.Tensor, rule: Optional[Rule]) -> int:
        """Returns the number of blocks that are kept."""
        size = self.block_elements
        if rule is None:
            return -(-gradients.numel() // size)
        whole = gradients.numel() // size * size
        kept = rule(_in_blocks(gradients, size), self)
        gradients[:whole].view(-1, size)[~kept[:whole // size]] = 0
        if whole != gradients.numel() and not kept[-1]:
            gradients[whole:] = 0
        return int(kept.sum())


def _in_blocks(flat: torch.Tensor, size: int) -> torch.Tensor:
    """[blocks, size]; the last one is filled up with zeros. A view, if there is nothing to fill."""
    missing = -flat.numel() % size
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, size)


def _forget_overflow(left_out: torch.Tensor) -> None:
    """A GradScaler skips the step: of it nothing is kept."""
    left_out.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def group_and_ranks(state: HookState) -> tuple[Any, int]:
    group = state.group if state.group is not None else dist.group.WORLD
    return group, dist.get_world_size(group)


def after(work: Any,
          received: Callable[[], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
    """What `received` returns once the work is done."""
    def receive(done: torch.futures.Future) -> torch.Tensor:
        done.value()  # raises what went wrong
        return received()

    return work.get_future().then(receive)


def summed(group: Any, sent: torch.Tensor,
           received: Callable[[], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
    """What `received` returns once the ranks' sum is in `sent`."""
    return after(dist.all_reduce(sent, group=group, async_op=True), received)


# DDP wants these annotations, and not as texts.
def _hook(compressor: Compressor,
          bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients = bucket.buffer()
    group, ranks = group_and_ranks(compressor)
    # Those of nn.Embedding(sparse=True) name their rows already.
    sent = gradients.div_(ranks) if gradients.is_sparse else compressor.compress(bucket, ranks)
    return summed(group, sent,
                  lambda: sent if sent.dtype == gradients.dtype else gradients.copy_(sent))


def top_k(ratio: float, optimizer: Optional[torch.optim.Optimizer] = None,
          **options: Any) -> tuple[Compressor, Hook]:
    """Of each bucket, the share `ratio` (above 0, at most 1) of the blocks travels: those with the
    largest sums of squares. At least one does. `options`: the Compressor's.

    optimizer: Adam or AdamW, which divides gradients by the root of their mean squares. Then those
        blocks travel that it moves most: with the largest ratio of their norm to that of these
        roots. Blocks of which it has seen nothing yet come first.
    """
    check_ratio(ratio)
    if optimizer is not None and "betas" not in getattr(optimizer, "defaults", {}):
        raise ValueError(f"optimizer is {type(optimizer).__name__}; Adam or AdamW expected")

    def rule(blocks: torch.Tensor, compressor: Compressor) -> torch.Tensor:
        energy = _energy(blocks)
        if compressor.weights is not None:  # x / 0 is infinity, and 0 / 0 comes last
            ratio_to = energy / _energy(_in_blocks(compressor.weights, blocks.shape[1]))
            energy = ratio_to.where(energy != 0, energy)
        kept = torch.zeros(len(blocks), dtype=torch.bool, device=blocks.device)
        kept[energy.topk(math.ceil(ratio * len(blocks))).indices] = True
        return kept

    def one_pass(gradients: torch.Tensor, left_out: Optional[torch.Tensor], ranks: int, blocks: int,
                 compressor: Compressor) -> int:
        common = gradients, left_out, compressor.block_elements, ranks, math.ceil(ratio * blocks)
        if compressor.weights is None:
            return _backend.compress_top_k(*common)
        return _backend.compress_top_k_ratio(*common, compressor.weights)

    compressor = _with_one_pass(Compressor(rule, **options), one_pass)
    if optimizer is not None:
        compressor._weights_of = lambda bucket: _roots_of_squares(optimizer, bucket)
    return compressor, _hook


def _roots_of_squares(optimizer: torch.optim.Optimizer,
                      bucket: dist.GradBucket) -> Optional[torch.Tensor]:
    """Of Adam's state for the bucket's elements; None before its first step."""
    states = [optimizer.state.get(parameter, {}) for parameter in bucket.parameters()]
    if not any(states):
        return None
    if any(state and "exp_avg_sq" not in state for state in states):
        raise ValueError(f"the state of {type(optimizer).__name__} has no exp_avg_sq; Adam or AdamW"
                         " expected")
    return torch.cat([
        state["exp_avg_sq"].sqrt().flatten() if state else parameter.new_zeros(parameter.numel())
        for state, parameter in zip(states, bucket.parameters())])


def threshold(norm: float, **options: Any) -> tuple[Compressor, Hook]:
    """Blocks travel whose Euclidean norm is above `norm` (0 or more), or no number. `options`: the
    Compressor's."""
    if not norm >= 0:
        raise ValueError(f"norm is {norm}; 0 or more expected")

    def rule(blocks: torch.Tensor, _: Compressor) -> torch.Tensor:
        return ~(_energy(blocks) <= norm * norm)

    def one_pass(gradients: torch.Tensor, left_out: Optional[torch.Tensor], ranks: int, _: int,
                 compressor: Compressor) -> int:
        return _backend.compress_threshold(gradients, left_out, compressor.block_elements, ranks,
                                           norm)

    return _with_one_pass(Compressor(rule, **options), one_pass), _hook


def random_k(ratio: float, seed: int = 0, **options: Any) -> tuple[Compressor, Hook]:
    """Of each bucket, the share `ratio` (above 0, at most 1) of the blocks travels: others in each
    step, but on all ranks the same ones, so that their union is no larger. `options`: the
    Compressor's."""
    check_ratio(ratio)

    def rule(blocks: torch.Tensor, compressor: Compressor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + compressor.calls)
        chosen = torch.randperm(len(blocks), generator=generator)[:math.ceil(ratio * len(blocks))]
        kept = torch.zeros(len(blocks), dtype=torch.bool, device=blocks.device)
        kept[chosen.to(blocks.device)] = True
        return kept

    def one_pass(gradients: torch.Tensor, left_out: Optional[torch.Tensor], ranks: int, blocks: int,
                 compressor: Compressor) -> int:
        return _backend.compress_random_k(gradients, left_out, compressor.block_elements, ranks,
                                          math.ceil(ratio * blocks), seed % 2**64,
                                          compressor.calls)

    return _with_one_pass(Compressor(rule, **options), one_pass), _hook


def bf16(**options: Any) -> tuple[Compressor, Hook]:
    """All blocks travel, as bfloat16. What is rounded away is added to the next gradients.
    `options`: the Compressor's."""
    return Compressor(None, wire_dtype=torch.bfloat16, **options), _hook


def _with_one_pass(compressor: Compressor, one_pass: OnePass) -> Compressor:
    compressor._one_pass = one_pass
    return compressor


def _energy(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.float().square().sum(1)


def check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; above 0 and at most 1 expected")
