"""Ok-Topk as DDP's communication hook: `ok_top_k.py SCENARIO...`."""
import datetime
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_torch
from group import RANK, RANKS
from hooks import STEPS, Bucket, expect_value_error, flat, gradients, make, of_step


def equal_on_all_ranks(tensor):
    all_of_them = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(all_of_them, tensor)
    return all(torch.equal(one, tensor) for one in all_of_them)


def nothing_left_out():
    plain = gradients(make())
    for ratio, warm_up in ((1.0, 0), (0.01, STEPS)):
        state, hook = sluice_torch.ok_top_k(ratio, warm_up=warm_up)
        for mine, theirs in zip(gradients(make(), (state, hook)), plain):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
        assert state.steps == STEPS
        assert state.density() > 0.4  # of pairs; zeros, as ReLU makes, are not sent


def nothing_is_lost():
    """The averages and what is left out on any rank are all gradients, though DDP makes its buckets
    again after the first step."""
    plain = sum(gradients(make()))
    for options in ({}, {"exact_every": 3}, {"warm_up": 2}):
        module, (state, hook) = make(), sluice_torch.ok_top_k(0.05, **options)
        steps = gradients(module, (state, hook))
        assert all(map(equal_on_all_ranks, steps))
        left = flat(map(state.left_out.of_parameter, module.parameters()))
        assert left.count_nonzero() > 0
        dist.all_reduce(left, op=dist.ReduceOp.AVG)
        worst = (sum(steps) + left - plain).abs().max()
        assert worst < 1e-6 * plain.abs().max() + 2e-8, (options, worst)


def about_k_are_sent_and_delivered():
    elements, ratio, steps = 50_000, 0.02, 80
    parameter, (state, hook) = nn.Parameter(torch.zeros(elements)), sluice_torch.ok_top_k(ratio)
    for step in range(steps):
        bucket = Bucket(parameter, of_step(step, RANK, elements))
        came = hook(state, bucket).wait()
        assert came.data_ptr() == bucket.buffer().data_ptr()
        if step > steps // 2:
            assert 0.5 * ratio < came.count_nonzero() / elements < 2 * ratio, step
    assert state.density() == ratio, state.density()
    assert ratio / 2 < state.result_density() < 2 * ratio, state.result_density()


def a_model_learns():
    """A regression, with some hundredths of the gradients."""
    torch.manual_seed(1)
    truth = torch.randn(100, 10)
    model = DistributedDataParallel(nn.Linear(100, 10, bias=False))
    state, hook = sluice_torch.ok_top_k(0.05)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator, losses = torch.Generator().manual_seed(RANK), []
    for _ in range(200):
        inputs = torch.randn(32, 100, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs @ truth).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10]), losses
    assert equal_on_all_ranks(model.module.weight.detach())
    assert state.density() < 0.06, state.density()


def what_it_cannot_take():
    for call, said in ((lambda: sluice_torch.ok_top_k(0), "ratio is 0"),
                       (lambda: sluice_torch.ok_top_k(2.0), "ratio is 2"),
                       (lambda: sluice_torch.ok_top_k(0.1, exact_every=0), "exact_every is 0"),
                       (lambda: sluice_torch.ok_top_k(0.1, warm_up=-1), "warm_up is -1")):
        expect_value_error(call, said)
    for options, dtype, said in (({}, torch.float64, "ok_top_k: a tensor is float64 [64]"),
                                 ({"warm_up": 1}, torch.bfloat16, "bfloat16 [64]"),
                                 ({"group": group.gloo()}, torch.float32, "ProcessGroupGloo")):
        state, hook = sluice_torch.ok_top_k(0.1, **options)
        module = nn.Linear(64, 1, bias=False).to(dtype)
        bucket = Bucket(module.weight, torch.ones(64, dtype=dtype))
        expect_value_error(lambda: hook(state, bucket), said)
    model = DistributedDataParallel(nn.Linear(64, 1, bias=False).double())
    model.register_comm_hook(*sluice_torch.ok_top_k(0.1))
    try:
        model(torch.ones(64, dtype=torch.float64)).backward()
    except (RuntimeError, ValueError) as error:
        assert "float32 tensor on cpu expected" in str(error), error
    else:
        raise AssertionError("no error of backward()")


def a_late_rank():
    """Others get the errors that it is late, and that the step is still under way. When that is
    over, the next step is right, and nothing that was not delivered is lost."""
    elements = 1000
    late = dist.new_group(timeout=datetime.timedelta(seconds=3))
    parameter = nn.Parameter(torch.zeros(elements))
    state, hook = sluice_torch.ok_top_k(0.1, group=late)
    first, second = (of_step(step, RANK, elements) for step in range(2))
    if RANK == 0:
        group.gloo().barrier().wait()  # the others' ops have failed
        delivered = hook(state, Bucket(parameter, first.clone())).wait()
    else:
        delivered = torch.zeros(elements)
        error = group.refused(hook(state, Bucket(parameter, first.clone())).wait, RuntimeError,
                              "ok_top_k 1", "it waits for rank 0")
        assert "(float32 [1000])" in str(error), error
        expect_value_error(lambda: hook(state, Bucket(parameter, second.clone())),
                           "still under way")
        group.gloo().barrier().wait()
    dist.broadcast(delivered, 0)
    bucket = Bucket(parameter, second.clone())
    until = time.monotonic() + 10
    while True:  # it is over here when the library has reported it
        try:
            future = hook(state, bucket)
            break
        except ValueError as error:
            assert "still under way" in str(error) and time.monotonic() < until, error
            time.sleep(0.01)
    came = future.wait()
    assert equal_on_all_ranks(came)
    left = state.left_out.of_parameter(parameter).clone()
    dist.all_reduce(left, op=dist.ReduceOp.AVG)
    given = first + second
    dist.all_reduce(given, op=dist.ReduceOp.AVG)
    assert torch.allclose(delivered + came + left, given, atol=1e-5)


def a_failed_step_leaves_all_out():
    """It ends at once, while its work still exists; also after the group has ended, in the hook.
    The last scenario, for that reason."""
    elements = 1000
    parameter = nn.Parameter(torch.zeros(elements))
    state, hook = sluice_torch.ok_top_k(0.1)
    hook(state, Bucket(parameter, of_step(0, RANK, elements))).wait()
    group.gloo().barrier().wait()  # all have the first step
    left = state.left_out.of_parameter(parameter)
    expected = left.clone()
    for step in (1, 2):
        mine = of_step(step, RANK, elements)
        if RANK == 0 and step == 1:
            group.refused(lambda: dist.all_reduce(torch.ones(3)), RuntimeError, "different")
            continue
        bucket = Bucket(parameter, mine.clone())
        if step == 1:
            work = group.backend().all_reduce_top_k(state._sums.of(bucket), bucket.buffer())
            group.refused(work.wait, RuntimeError, "different")
        else:
            group.refused(hook(state, bucket).wait, RuntimeError, "different")
        expected += mine
        assert torch.equal(left, expected), step
    state.forget()


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
