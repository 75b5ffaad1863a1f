"""sluice_contrib.DelayedAdam, beside Adam and a plain reference: `delays_adam.py SCENARIO...`."""
import copy
import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_contrib
import sluice_torch
from group import RANK, RANKS

LR, BETAS, EPS = 0.01, (0.5, 0.99), 1e-8


def gradients_of(step, elements):
    """A third is 0 in each step, the first eight elements never, the last one always."""
    generator = torch.Generator().manual_seed(step)
    gradients = torch.randn(elements, generator=generator)
    gradients[8:][torch.rand(elements - 8, generator=generator) < 1 / 3] = 0
    gradients[-1] = 0
    return gradients


def moved(optimizer, parameter, steps):
    for step in steps:
        parameter.grad = gradients_of(step, parameter.numel())
        optimizer.step()
    return parameter.detach().clone()


def with_every_gradient_it_is_adam():
    found = []
    for make in (sluice_contrib.DelayedAdam, torch.optim.AdamW):
        parameter = nn.Parameter(torch.ones(8))
        optimizer = make([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=0.1)
        found.append(moved(optimizer, parameter, range(50)))
    assert torch.allclose(*found, rtol=1e-5), found
    assert (found[0] - 1).abs().min() > 1e-3


def late_gradients_count_for_all_their_steps():
    """A scalar reference in double precision."""
    elements, steps = 40, 60
    parameter = nn.Parameter(torch.zeros(elements))
    optimizer = sluice_contrib.DelayedAdam([parameter], lr=LR, betas=BETAS, eps=EPS)
    came = moved(optimizer, parameter, range(steps)).tolist()
    every = [gradients_of(step, elements).tolist() for step in range(steps)]
    for i in range(elements):
        place, mean, squares, last = 0.0, 0.0, 0.0, 0
        for step in range(1, steps + 1):
            gradient = every[step - 1][i]
            mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
            squares *= BETAS[1]
            if gradient != 0:
                late = step - last
                squares += (1 - BETAS[1]) * late * (gradient / late) ** 2
                last = step
            root = math.sqrt(squares / (1 - BETAS[1] ** step)) + EPS
            place -= LR * mean / (1 - BETAS[0] ** step) / root
        assert math.isclose(came[i], place, rel_tol=1e-4, abs_tol=1e-6), (i, came[i], place)
    assert came[-1] == 0, "never a gradient, never moved"


def it_goes_on_from_its_state():
    parameter = nn.Parameter(torch.zeros(40))
    optimizer = sluice_contrib.DelayedAdam([parameter], lr=LR)
    moved(optimizer, parameter, range(20))
    other = nn.Parameter(parameter.detach().clone())
    again = sluice_contrib.DelayedAdam([other], lr=7.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(moved(again, other, range(20, 40)),
                       moved(optimizer, parameter, range(20, 40)))


def bad_numbers_stay_where_they_are():
    """As with Adam: an element that was NaN or infinite once stays NaN; others are not touched."""
    for bad in (float("nan"), float("inf")):
        places = []
        for at in (None, 3):
            parameter = nn.Parameter(torch.zeros(40))
            optimizer = sluice_contrib.DelayedAdam([parameter], lr=LR)
            parameter.grad = gradients_of(0, 40)
            if at is not None:
                parameter.grad[at] = bad
            optimizer.step()
            places.append(moved(optimizer, parameter, range(1, 10)))
        assert places[1][3].isnan()
        others = torch.arange(40) != 3
        assert torch.equal(places[0][others], places[1][others])


def all_ranks_train_alike():
    """With compressed gradients: to the bit, and the loss falls."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(40, 500), nn.ReLU(), nn.Linear(500, 3))
    teacher = nn.Linear(40, 3)
    for parameter in teacher.parameters():
        dist.broadcast(parameter.data, 0)
    model = DistributedDataParallel(module)
    optimizer = sluice_contrib.DelayedAdam(module.parameters(), lr=0.003)
    compressor, hook = sluice_torch.top_k(0.1, optimizer, wire_dtype=torch.bfloat16)
    model.register_comm_hook(compressor, hook)
    generator, losses = torch.Generator().manual_seed(RANK), []
    for _ in range(100):
        inputs = torch.randn(16, 40, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - teacher(inputs).detach()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10]), losses
    assert compressor.weights is not None and 0.09 < compressor.density() < 0.12
    for parameter in module.parameters():
        theirs = [torch.empty_like(parameter) for _ in range(RANKS)]
        dist.all_gather(theirs, parameter.detach())
        assert all(torch.equal(one, theirs[0]) for one in theirs)


def arguments_are_checked():
    parameter = nn.Parameter(torch.zeros(4))
    for options in ({"lr": -1.0}, {"lr": math.nan}, {"eps": -1.0}, {"weight_decay": -0.1},
                    {"betas": (1.0, 0.9)}, {"betas": (0.5, -0.1)}):
        try:
            sluice_contrib.DelayedAdam([parameter], **options)
        except ValueError as error:
            assert "expected" in str(error) and next(iter(options)) in str(error)
        else:
            raise AssertionError(f"no ValueError of {options}")
    module = nn.Embedding(10, 4, sparse=True)
    module(torch.tensor([1])).sum().backward()
    try:
        sluice_contrib.DelayedAdam(module.parameters()).step()
    except RuntimeError as error:
        assert "sparse" in str(error)
    else:
        raise AssertionError("no RuntimeError of a sparse gradient")


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
