"""sluice_contrib.ef21: `follows_ef21.py SCENARIO...`."""
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_contrib
import sluice_torch
from group import RANK, RANKS
from hooks import STEPS, Bucket, expect_value_error, gradients, make, of_step


def nothing_left_out():
    plain = gradients(make())
    for hook in (sluice_torch.top_k(1.0), sluice_torch.random_k(1.0), sluice_torch.threshold(0.0),
                 sluice_torch.top_k(0.01, warm_up=STEPS)):
        estimates, function = sluice_contrib.ef21(hook)
        for mine, theirs in zip(gradients(make(), (estimates, function)), plain):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
        compressor = estimates.compressor
        assert compressor.density() > 0.9  # a threshold leaves out blocks that are zero
        assert compressor.calls > 2 * STEPS, "several buckets"
        assert compressor.steps == STEPS


def top_blocks(blocks, k):
    """Those of the largest norms alone, as plainly as can be."""
    by_norm = sorted(range(len(blocks)), key=lambda b: -float(blocks[b].double().norm()))
    return torch.stack([blocks[b] * (b in by_norm[:k]) for b in range(len(blocks))])


def it_is_as_published():
    """Beside a reference that computes what every rank does."""
    elements, blocks, k = 20 * 64 - 5, 20, 3
    parameter = nn.Parameter(torch.zeros(elements))
    estimates, hook = sluice_contrib.ef21(sluice_torch.top_k(k / blocks, block_elements=64))
    theirs = [torch.zeros(elements) for _ in range(RANKS)]
    for step in range(3 * STEPS):
        for rank in range(RANKS):
            difference = nn.functional.pad(of_step(step, rank, elements) - theirs[rank], (0, 5))
            theirs[rank] += top_blocks(difference.view(blocks, 64), k).flatten()[:elements]
        bucket = Bucket(parameter, of_step(step, RANK, elements))
        came = hook(estimates, bucket).wait()
        assert came.data_ptr() == bucket.buffer().data_ptr()
        assert torch.allclose(came, sum(theirs) / RANKS, atol=1e-5), step
        assert torch.allclose(estimates.mine.of(bucket), theirs[RANK], atol=1e-5), step
    assert estimates.compressor.density() == k / blocks


def it_reaches_gradients_that_stay():
    """With every compressor."""
    for make_hook in (lambda: sluice_torch.top_k(0.1), lambda: sluice_torch.random_k(0.3),
                      lambda: sluice_torch.threshold(1e-3)):
        parameter = nn.Parameter(torch.zeros(5000))
        estimates, hook = sluice_contrib.ef21(make_hook())
        for _ in range(40):
            came = hook(estimates, Bucket(parameter, of_step(0, RANK, 5000))).wait()
        mean = sum(of_step(0, rank, 5000) for rank in range(RANKS)) / RANKS
        assert torch.allclose(came, mean, atol=1e-3), (came - mean).abs().max()


def it_forgets_bad_numbers():
    """All ranks are told in that step; later steps are right, also where they were."""
    for bad in (float("nan"), float("inf")):
        parameter = nn.Parameter(torch.zeros(5000))
        estimates, hook = sluice_contrib.ef21(sluice_torch.top_k(0.1))
        for step in range(40):
            mine = of_step(0, RANK, 5000)
            if step == 3 and RANK == 0:
                mine[1234] = bad
            came = hook(estimates, Bucket(parameter, mine)).wait()
            assert came[1234].isfinite() == (step != 3), step
            assert came.isfinite().sum() >= 4999
        mean = sum(of_step(0, rank, 5000) for rank in range(RANKS)) / RANKS
        assert torch.allclose(came, mean, atol=1e-5)


def sparse_gradients():
    """They are summed as they are."""
    module = nn.Sequential(nn.Embedding(1000, 16, sparse=True))
    model = DistributedDataParallel(module)
    model.register_comm_hook(*sluice_contrib.ef21(sluice_torch.top_k(0.1)))
    model(torch.tensor([RANK, 999])).sum().backward()
    gradient = module[0].weight.grad.to_dense()
    assert (gradient[999] == 1).all()
    assert (gradient[:RANKS] == 1 / RANKS).all()


def what_it_cannot_take():
    for hook in (sluice_torch.bf16(), sluice_torch.ok_top_k(0.5),
                 sluice_torch.top_k(0.5, wire_dtype=torch.bfloat16)):
        expect_value_error(lambda hook=hook: sluice_contrib.ef21(hook), "expected")
    used = sluice_torch.top_k(0.5)
    used[0].compress(Bucket(nn.Parameter(torch.zeros(9)), torch.ones(9)), 1)
    expect_value_error(lambda: sluice_contrib.ef21(used), "called 1 times")


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
