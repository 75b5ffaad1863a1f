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

__all__ = ["Compressor", "bf16", "random_k", "threshold", "top_k"]

Hook = Callable[[Any, Any], torch.futures.Future]
Rule = Callable[[torch.Tensor, "Compressor"], torch.Tensor]
# From gradients, what was left out, ranks, number of blocks and compressor to the blocks sent.
OnePass = Callable[[torch.Tensor, Optional[torch.Tensor], int, int, "Compressor"], int]


class Compressor:
    """Which blocks travel, in what type, and what was left out so far.

    rule: from the blocks, a tensor [blocks, block_elements], and this compressor to a bool for each
        block: whether it travels; None: all do.
    block_elements: as the job's, so that a block left out is one not sent (SLUICE_BLOCK_ELEMENTS).
    error_feedback: whether what is left out, or rounded away, is added to the next gradients.
    wire_dtype: in which the gradients travel; None: their own.
    group: of the model; None: the default group.
    """

    def __init__(self, rule: Optional[Rule], block_elements: int = 256, error_feedback: bool = True,
                 wire_dtype: Optional[torch.dtype] = None,
                 group: Optional[dist.ProcessGroup] = None):
        if block_elements < 1:
            raise ValueError(f"block_elements is {block_elements}; 1 or more expected")
        self.rule = rule
        self.block_elements = block_elements
        self.error_feedback = error_feedback
        self.wire_dtype = wire_dtype
        self.group = group
        self.calls = 0  #: buckets compressed: the same number on all ranks at the same call
        self.blocks = 0  #: of all of them
        self.blocks_kept = 0  #: by this rank
        self._one_pass: Optional[OnePass] = None  # the rule as the library has it
        self._left_out: dict[tuple[int, ...], torch.Tensor] = {}  # by the ids of the parameters
        self._part: dict[int, torch.Tensor] = {}  # of those tensors, by the parameter's id

    def compress(self, bucket: dist.GradBucket, ranks: int) -> torch.Tensor:
        """What travels of the bucket's gradients, which may be its buffer: this rank's part of the
        average over so many ranks."""
        gradients = bucket.buffer()
        left_out = self._left_out_of(bucket) if self.error_feedback else None
        if self._one_pass is not None and self._fits_library(gradients):
            blocks = -(-gradients.numel() // self.block_elements)
            self.blocks += blocks
            self.blocks_kept += self._one_pass(gradients, left_out, ranks, blocks, self)
            self.calls += 1
            return gradients
        if left_out is not None:
            gradients.add_(left_out)
            left_out.copy_(gradients)
        self._zero_the_rest(gradients)
        if left_out is not None and self.wire_dtype is None:
            left_out.sub_(gradients)
        sent = gradients.div_(ranks)  # before the sum, which may be too large for 16 bits
        if self.wire_dtype is not None:
            sent = gradients.to(self.wire_dtype)
            if left_out is not None:
                left_out.sub_(sent, alpha=ranks)  # what the division rounds, too
        if left_out is not None:  # of an overflow, which a GradScaler skips, nothing is kept
            left_out.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self.calls += 1
        return sent

    def density(self) -> float:
        """The share of blocks that this rank kept up to now."""
        return self.blocks_kept / self.blocks if self.blocks else 1.0

    def _fits_library(self, gradients: torch.Tensor) -> bool:
        """Others are compressed by tensor operations, with the same rules."""
        return (self.wire_dtype is None and gradients.dtype == torch.float32
                and gradients.device.type == "cpu" and gradients.is_contiguous()
                and self.block_elements < 2**32)

    def _zero_the_rest(self, gradients: torch.Tensor) -> None:
        size = self.block_elements
        count = -(-gradients.numel() // size)
        self.blocks += count
        if self.rule is None:
            self.blocks_kept += count
            return
        whole = gradients.numel() // size * size
        padded = [gradients[:whole].view(-1, size)]
        if whole != gradients.numel():  # the last block, filled up
            last = gradients.new_zeros(1, size)
            last[0, :gradients.numel() - whole] = gradients[whole:]
            padded.append(last)
        blocks = padded[0] if len(padded) == 1 else torch.cat(padded)
        kept = self.rule(blocks, self)
        self.blocks_kept += int(kept.sum())
        padded[0][~kept[:whole // size]] = 0
        if len(padded) > 1 and not kept[-1]:
            gradients[whole:] = 0

    def _left_out_of(self, bucket: dist.GradBucket) -> torch.Tensor:
        """As one tensor for the bucket, of which each parameter has its part. DDP puts the
        parameters into other buckets after the first step: what was left out moves with them."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._left_out:
            whole, place = torch.zeros_like(bucket.buffer()), 0
            for parameter in parameters:
                part = whole[place:place + parameter.numel()]
                before = self._part.get(id(parameter))
                if before is not None:
                    part.copy_(before)
                self._part[id(parameter)] = part
                place += parameter.numel()
            moved = set(key)
            self._left_out = {k: v for k, v in self._left_out.items() if moved.isdisjoint(k)}
            self._left_out[key] = whole
        return self._left_out[key]


# DDP wants these annotations, and not as texts.
def _hook(compressor: Compressor,
          bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients = bucket.buffer()
    # Those of nn.Embedding(sparse=True) name their rows already.
    group = compressor.group if compressor.group is not None else dist.group.WORLD
    ranks = dist.get_world_size(group)
    sent = gradients.div_(ranks) if gradients.is_sparse else compressor.compress(bucket, ranks)

    def receive(done: torch.futures.Future) -> torch.Tensor:
        done.value()  # raises what went wrong
        return sent if sent.dtype == gradients.dtype else gradients.copy_(sent)

    return dist.all_reduce(sent, group=group, async_op=True).get_future().then(receive)


def top_k(ratio: float, **options: Any) -> tuple[Compressor, Hook]:
    """Of each bucket, the share `ratio` (above 0, at most 1) of the blocks travels: those with the
    largest sums of squares. At least one does. `options`: the Compressor's."""
    _check_ratio(ratio)

    def rule(blocks: torch.Tensor, _: Compressor) -> torch.Tensor:
        kept = torch.zeros(len(blocks), dtype=torch.bool, device=blocks.device)
        kept[_energy(blocks).topk(math.ceil(ratio * len(blocks))).indices] = True
        return kept

    def one_pass(gradients: torch.Tensor, left_out: Optional[torch.Tensor], ranks: int, blocks: int,
                 compressor: Compressor) -> int:
        return _backend.compress_top_k(gradients, left_out, compressor.block_elements, ranks,
                                       math.ceil(ratio * blocks))

    return _with_one_pass(Compressor(rule, **options), one_pass), _hook


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
    _check_ratio(ratio)

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


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; above 0 and at most 1 expected")
