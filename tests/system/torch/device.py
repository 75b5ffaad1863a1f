"""Tensors on a device: many chunks, works that are dropped, failures that come after wait(), memory
that cannot be pinned, graphs. The device is the CPU (tests/system/torch_device), or a GPU
(DEV=cuda)."""
import os

import torch
import torch.distributed as dist

import group
from group import DEVICE

LARGE = 2_500_001  # three chunks


def of_rank(rank, density, seed=0):
    """Large, so that it has several chunks; blocks of 256 elements are zero or not."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    blocks = torch.rand(LARGE // 256 + 1, generator=generator) < density
    return (torch.arange(LARGE) % 7 + 1).float() * blocks.repeat_interleave(256)[:LARGE]


def sums_of_many_chunks():
    for seed, density in enumerate([0, 0.001, 0.1, 1]):
        tensor = of_rank(group.RANK, density, seed).to(DEVICE)
        dist.all_reduce(tensor)
        group.same(tensor.cpu(), sum(of_rank(r, density, seed) for r in range(group.RANKS)),
                   density)


def parts_of_many_chunks():
    tensor = of_rank(group.RANK, 0.1).to(DEVICE)[:LARGE // group.RANKS * group.RANKS]
    whole = sum(of_rank(r, 0.1) for r in range(group.RANKS))[:tensor.numel()]
    part = torch.empty(tensor.numel() // group.RANKS, device=DEVICE)
    dist._reduce_scatter_base(part, tensor)
    group.same(part.cpu(), whole.chunk(group.RANKS)[group.RANK])
    back = torch.empty_like(tensor)
    dist._all_gather_base(back, part)
    group.same(back.cpu(), whole)


def many_in_flight():
    tensors = [of_rank(group.RANK, 0.05, seed).to(DEVICE) for seed in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for seed, (tensor, work) in enumerate(zip(tensors, works)):
        work.wait()
        group.same(tensor.cpu(), sum(of_rank(r, 0.05, seed) for r in range(group.RANKS)))


def dropped_works():
    for seed in range(4):
        dist.all_reduce(of_rank(group.RANK, 0.05, seed).to(DEVICE), async_op=True)
    dist.barrier()


def futures():
    tensor = of_rank(group.RANK, 0.05).to(DEVICE)
    value = dist.all_reduce(tensor, async_op=True).get_future().then(
        lambda future: future.value()[0] * 2).wait()
    group.same(value.cpu(), 2 * sum(of_rank(r, 0.05) for r in range(group.RANKS)))


def late_failure():
    """A rank calls something else: there is no valid result, and an error is reported."""
    tensor = torch.ones(1000 + group.RANK, device=DEVICE)
    try:
        dist.all_reduce(tensor)
        failed = bool(tensor.isnan().all())  # its wait() had returned
    except RuntimeError as error:
        failed = "different collectives" in str(error)
    assert failed
    group.refused(lambda: dist.all_reduce(torch.ones(1, device=DEVICE)), RuntimeError, "different")
    print("told", flush=True)


def unpinned():
    group.refused(lambda: dist.all_reduce(torch.ones(LARGE, device=DEVICE)), RuntimeError,
                  f"float32 [{LARGE}]", "refuses to pin")
    small = torch.ones(10, device=DEVICE)
    dist.all_reduce(small)  # the group goes on
    group.same(small.cpu(), torch.full((10,), float(group.RANKS)))


def captured():
    group.refused(lambda: dist.all_reduce(torch.ones(10, device=DEVICE)), ValueError, "all_reduce",
                  "captured")


if __name__ == "__main__":
    group.start()
    chosen = os.environ.get("CASE")
    if chosen == "late_failure":
        late_failure()
        os._exit(0)
    group.run(*([globals()[chosen]] if chosen else
                [sums_of_many_chunks, parts_of_many_chunks, many_in_flight, dropped_works,
                 futures]))
