"""Models trained over Sluice and over Gloo have the same losses: `training.py SCENARIO...`."""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
from group import RANK, RANKS

STEPS = 6


def losses(make_model, batch, over, **options):
    """The losses of this rank, step by step."""
    torch.manual_seed(1)
    model = DistributedDataParallel(make_model(), process_group=over, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(RANK)
    found = []
    for step in range(STEPS):
        loss = model(batch(generator, step)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def same_as_over_gloo(make_model, batch, **options):
    mine, theirs = (losses(make_model, batch, over, **options)
                    for over in (group.default(), group.gloo()))
    assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), rtol=1e-5), (mine, theirs)
    half = STEPS // 2
    assert sum(mine[half:]) < sum(mine[:half]), mine  # it learns


def dense():
    """Several buckets, whose sums are in flight at once; batch norm's buffers are broadcast."""
    def make():
        return nn.Sequential(nn.Linear(50, 400), nn.BatchNorm1d(400), nn.ReLU(),
                             nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))

    same_as_over_gloo(make, lambda generator, _: torch.randn(16, 50, generator=generator),
                      bucket_cap_mb=0.25)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(20, 20) for _ in range(3))
        self.end = nn.Linear(20, 5)

    def forward(self, given):
        features, branch = given
        return self.end(self.branches[branch](features))


def unused_parameters():
    """Each rank takes another path in each step."""
    same_as_over_gloo(Branches, lambda generator, step: (torch.randn(8, 20, generator=generator),
                                                         (step + RANK) % 3),
                      find_unused_parameters=True)


def sparse_embedding():
    def make():
        return nn.Sequential(nn.Embedding(1000, 16, sparse=True), nn.Flatten(), nn.Linear(80, 4))

    same_as_over_gloo(make, lambda generator, _: torch.randint(0, 1000, (12, 5),
                                                               generator=generator))


def beside_a_message():
    """Rank 1 receives it only after what follows the model's steps; rank 0 has dropped its handle,
    and its gradients do not wait."""
    word = torch.full((3,), 7.)
    if RANK == 0:
        dist.isend(word, 1)
    losses(lambda: nn.Linear(5, 3), lambda generator, _: torch.randn(8, 5, generator=generator),
           over=group.default())
    dist.barrier()
    if RANK == 1:
        received = torch.empty(3)
        dist.recv(received, 0)
        assert torch.equal(received, word)
    dist.barrier()


def sharded():
    """A parameter in shards, as in FSDP: gathered for use, its gradient scattered."""
    size = 64 * RANKS
    shard = torch.full((64,), float(RANK))
    whole = torch.empty(size)
    for _ in range(3):
        dist.all_gather_into_tensor(whole, shard)
        gradient = whole * (RANK + 1)
        mine = torch.empty(64)
        dist.reduce_scatter_tensor(mine, gradient, dist.ReduceOp.AVG)
        shard = shard - 0.1 * mine
    factor = 1 - 0.1 * sum(range(1, RANKS + 1)) / RANKS
    assert torch.allclose(shard, torch.full((64,), RANK * factor ** 3)), shard


def made_again():
    """One job after the other in one process; nothing of the first is left."""
    dist.destroy_process_group()
    for _ in range(2):
        group.start()
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert (tensor == RANKS).all()
        dist.destroy_process_group()
    group.start()


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
