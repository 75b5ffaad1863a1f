"""sluice_torch.ZeroOneAdam, compared with Adam and a plain reference: `zero_one_adam.py
SCENARIO...`."""
import copy
import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_torch
from group import RANK, RANKS, refused

LR, BETAS, EPS = 0.01, (0.9, 0.99), 1e-8
ELEMENTS = 700  # more than two blocks
STEP = {"int4": 1 / 7, "int8": 1 / 127}  # of a block's largest element


def gradients_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(ELEMENTS, generator=generator)


def made(make=sluice_torch.ZeroOneAdam, **options):
    parameter = nn.Parameter(torch.linspace(-1, 1, ELEMENTS))
    return parameter, make([parameter], lr=LR, betas=BETAS, eps=EPS, **options)


def take(parameter, optimizer, steps, gradients=lambda step: gradients_of(RANK, step)):
    for step in steps:
        parameter.grad = gradients(step)
        optimizer.step()
    return parameter.detach().clone()


def of_all(tensor):
    theirs = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(theirs, tensor.contiguous())
    return theirs


def mean_of_all(step):
    return sum(gradients_of(rank, step) for rank in range(RANKS)) / RANKS


def warming_up_it_is_adam():
    mine = take(*made(warm_up=20), range(20))
    adams = take(*made(torch.optim.Adam), range(20), mean_of_all)
    assert torch.allclose(mine, adams, rtol=1e-5, atol=1e-6), (mine - adams).abs().max()
    assert all(torch.equal(one, mine) for one in of_all(mine))


def ranks_step_alone_and_meet():
    """Compared with the result of all ranks, computed without Sluice."""
    for encoding in ("int4", "int8"):
        parameter, optimizer = made(warm_up=0, local_steps=3, encoding=encoding)
        start = parameter.detach().clone()
        places = [start.clone() for _ in range(RANKS)]
        means = [torch.zeros(ELEMENTS) for _ in range(RANKS)]
        squares = [torch.zeros(ELEMENTS) for _ in range(RANKS)]
        for step in range(3):
            for rank in range(RANKS):
                gradient = gradients_of(rank, step)
                means[rank] = BETAS[0] * means[rank] + (1 - BETAS[0]) * gradient
                squares[rank] = BETAS[1] * squares[rank] + (1 - BETAS[1]) * (gradient / RANKS)**2
                root = (squares[rank] / (1 - BETAS[1] ** (step + 1))).sqrt() + EPS
                places[rank] -= LR / (1 - BETAS[0] ** (step + 1)) * means[rank] / root
            take(parameter, optimizer, [step])
            if step < 2:
                assert torch.allclose(parameter.detach(), places[RANK], atol=1e-6)
                assert not torch.equal(*of_all(parameter.detach())[:2])
        mine = parameter.detach()
        assert all(torch.equal(one, mine) for one in of_all(mine))
        moved = sum(places) / RANKS - start
        bound = 3 * STEP[encoding] * max((place - start).abs().max() for place in places)
        assert (mine - start - moved).abs().max() < bound
        assert (mine - start).abs().max() > 0.5 * moved.abs().max()


def nothing_is_lost():
    """The part that a rank's rounding leaves out of one exchange is in the next ones."""
    parameter, optimizer = made(warm_up=0, local_steps=1, encoding="int4")
    take(parameter, optimizer, [0])
    left = optimizer.state[parameter]["left_out"].clone()
    assert left.abs().max() > 0
    before = parameter.detach().clone()
    optimizer.exchange()
    left -= optimizer.state[parameter]["left_out"]  # so it was sent now
    came = parameter.detach() - before
    sent = sum(of_all(left)) / RANKS
    assert left.abs().max() > 0
    assert (came - sent).abs().max() <= 1.01 * STEP["int4"] * sent.abs().max()  # rounded once


def few_bytes_are_sent():
    parameter = nn.Parameter(torch.zeros(100_000))
    optimizer = sluice_torch.ZeroOneAdam([parameter], warm_up=0, local_steps=2)
    before = sluice_torch.bytes_sent()
    for step in range(20):
        parameter.grad = torch.randn(100_000, generator=torch.Generator().manual_seed(step + RANK))
        optimizer.step()
    sent = sluice_torch.bytes_sent() - before
    assert 20 * 400_000 / 20 < sent < 20 * 400_000 / 13, sent


def variances_meet():
    parameter, optimizer = made(warm_up=0, local_steps=1, variance_every=4)
    for step in range(8):
        take(parameter, optimizer, [step])
        squares = of_all(optimizer.state[parameter]["exp_avg_sq"])
        assert torch.equal(squares[0], squares[1]) == (step % 4 == 3), step


def it_goes_on_from_its_state():
    parameter, optimizer = made(warm_up=5, local_steps=2)
    take(parameter, optimizer, range(10))
    other = nn.Parameter(parameter.detach().clone())
    again = sluice_torch.ZeroOneAdam([other], warm_up=5, local_steps=2, lr=7.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(take(other, again, range(10, 20)),
                       take(parameter, optimizer, range(10, 20)))


def a_model_learns():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(40, 500), nn.ReLU(), nn.Linear(500, 3))
    teacher = nn.Linear(40, 3)
    for parameter in teacher.parameters():
        dist.broadcast(parameter.data, 0)
    model = DistributedDataParallel(module)
    optimizer = sluice_torch.ZeroOneAdam(module.parameters(), lr=0.003)
    model.register_comm_hook(*optimizer.comm_hook())
    generator, losses = torch.Generator().manual_seed(RANK), []
    for _ in range(101):
        inputs = torch.randn(16, 40, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - teacher(inputs).detach()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10]), losses
    optimizer.exchange()  # the last step was one of two
    for parameter in module.parameters():
        assert all(torch.equal(one, parameter) for one in of_all(parameter.detach()))


def arguments_are_checked():
    make = sluice_torch.ZeroOneAdam
    parameter = nn.Parameter(torch.zeros(4))
    for options in ({"lr": -1.0}, {"lr": math.nan}, {"eps": -1.0}, {"warm_up": -1},
                    {"local_steps": 0}, {"variance_every": 0}, {"betas": (1.0, 0.9)},
                    {"encoding": "int2"}):
        refused(lambda options=options: make([parameter], **options), ValueError, "expected",
                *options)
    double = torch.zeros(4, dtype=torch.float64)
    refused(lambda: make([nn.Parameter(double)]), ValueError, "float64", "float32 expected")
    encoded = sluice_torch.all_reduce_encoded
    refused(lambda: encoded(torch.zeros(4), "int2"), ValueError, "int2", "int4")
    refused(lambda: encoded(double, "int4"), ValueError, "float64", "float32")
    refused(lambda: encoded(torch.zeros(4), "int4", group.gloo()), ValueError, "Gloo",
            "sluice expected")
    rows = nn.Embedding(10, 4, sparse=True)
    rows(torch.tensor([1])).sum().backward()
    refused(make(rows.parameters()).step, RuntimeError, "sparse")


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
