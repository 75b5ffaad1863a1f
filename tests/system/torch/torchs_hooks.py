"""Each communication hook that PyTorch ships, over Sluice and over Gloo, with the same bits:
`torchs_hooks.py`. Callbacks of some call collectives and wait for them."""
import unittest.mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks as fsdp_hooks
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType, debugging_hooks, default_hooks, optimizer_overlap_hooks, post_localSGD_hook,
    powerSGD_hook, quantization_hooks)
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import as_functional_optim
from torch.nn.parallel import DistributedDataParallel

import group
from group import RANK, RANKS, of_all, same

STEPS = 5


def trained(over, register, after_step=lambda model: None):
    """A model's gradients and parameters, step by step. All are in one bucket: which
    of several callbacks comes first differs between ranks, for every backend."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 30)),
                                    process_group=over)
    register(model, over)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(RANK)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        after_step(model)
        found += [parameter.detach().clone() for parameter in model.parameters()]
    return found


def by(hook, make_state=lambda over: over):
    """Registers it; under another name, since PyTorch ties that of some to CUDA."""
    def renamed(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    return lambda model, over: model.register_comm_hook(make_state(over), renamed)


def as_over_gloo(*ways):
    for way in ways:
        for mine, theirs in zip(trained(group.default(), way), trained(group.gloo(), way),
                                strict=True):
            same(mine, theirs)


def of_16_bits():
    as_over_gloo(by(default_hooks.allreduce_hook), by(default_hooks.fp16_compress_hook),
                 by(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
                 by(default_hooks.fp16_compress_wrapper(debugging_hooks.noop_hook)))


def of_bfloat16():
    """A type that Gloo does not sum."""
    plain = trained(group.default(), by(default_hooks.allreduce_hook))
    for hook in (default_hooks.bf16_compress_hook,
                 default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)):
        for mine, exact in zip(trained(group.default(), by(hook)), plain, strict=True):
            assert torch.allclose(mine, exact, rtol=0.02, atol=1e-3)
            assert not torch.equal(mine, exact)


def built_in():
    as_over_gloo(*(lambda model, _, kind=kind: model._register_builtin_comm_hook(kind)
                   for kind in (dist.BuiltinCommHookType.ALLREDUCE,
                                dist.BuiltinCommHookType.FP16_COMPRESS)))


def debugging():
    as_over_gloo(by(debugging_hooks.noop_hook))


def in_place_of(owner, name, function):
    return unittest.mock.patch.object(owner, name, function)


def orthogonalize(matrices, epsilon=0, really=powerSGD_hook._orthogonalize):
    """The function of PyTorch 1.13 asserts a batch of matrices, and its own batched hook passes
    one."""
    really(matrices if matrices.dim() == 3 else matrices[None], epsilon)


def power_sgd():
    """Callbacks call two collectives, and wait for each."""
    def ways():
        for hook in powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook:
            for options in ({}, {"matrix_approximation_rank": 2, "warm_start": False},
                            {"use_error_feedback": False, "start_powerSGD_iter": 4}):
                settings = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, **options}
                yield by(hook, lambda over, settings=settings: powerSGD_hook.PowerSGDState(
                    process_group=over, **settings))

    with in_place_of(powerSGD_hook, "_orthogonalize", orthogonalize):
        as_over_gloo(*ways())
    power_sgd_itself = DDPCommHookType.POWER_SGD
    power_sgd_itself = getattr(power_sgd_itself, "value", power_sgd_itself)  # since Python 3.13
    as_over_gloo(lambda model, over: power_sgd_itself(model=model, state=over,
                                                      start_powerSGD_iter=2))
    trained(group.default(), by(
        default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook),
        lambda over: powerSGD_hook.PowerSGDState(over, start_powerSGD_iter=2)))


class LikeNccl:
    """What these hooks expect of a gather's future: all parts stacked in one tensor."""

    def __init__(self, work):
        self.work = work

    def get_future(self):
        return self.work.get_future().then(lambda done: [torch.stack(done.value())])


def quantization():
    """Hooks that were written only for CUDA and NCCL; here they use neither."""
    def gather(*arguments, really=dist.all_gather, **named):
        return LikeNccl(really(*arguments, **named))

    with (in_place_of(torch.Tensor, "cuda", lambda self, *_: self),
          in_place_of(nn.Module, "cuda", lambda self, *_: self),
          in_place_of(dist, "all_gather", gather)):
        as_over_gloo(by(quantization_hooks.quantization_pertensor_hook),
                     by(quantization_hooks.quantization_perchannel_hook))


def post_local_sgd():
    """After two steps the ranks only average their parameters, in every second step."""
    alone = {over: [dist.new_group([rank], backend=backend) for rank in range(RANKS)][RANK]
             for over, backend in ((group.default(), "sluice"), (group.gloo(), "gloo"))}
    found = []
    for over in (group.default(), group.gloo()):
        averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2, process_group=over)
        found.append(trained(
            over, by(post_localSGD_hook.post_localSGD_hook,
                     lambda over: post_localSGD_hook.PostLocalSGDState(over, alone[over], 2)),
            lambda model: averager.average_parameters(model.parameters())))
    for mine, theirs in zip(*found, strict=True):
        same(mine, theirs)


def optimizer_overlap():
    """The callback steps the parameters."""
    def register(model, over):
        optimizer = as_functional_optim(torch.optim.SGD, lr=0.05)
        state = optimizer_overlap_hooks._OptimizerHookState(optimizer, model.parameters())
        model.register_comm_hook(over, optimizer_overlap_hooks._hook_then_optimizer(
            default_hooks.allreduce_hook, state))

    as_over_gloo(register)


def fully_sharded():
    gradients = of_all((RANKS, 6), torch.float32)
    average, state = sum(gradients) / RANKS, fsdp_hooks.DefaultState(group.default())
    mine, shard = gradients[RANK].clone(), torch.empty(1, 6)
    fsdp_hooks.allreduce_hook(state, mine)
    same(mine, average)
    fsdp_hooks.reduce_scatter_hook(state, gradients[RANK].clone(), shard)
    same(shard[0], average[RANK])


if __name__ == "__main__":
    group.start()
    assert RANKS == 2  # two numbers have the same sum in either order
    group.run(of_16_bits, of_bfloat16, built_in, debugging, power_sgd, quantization, post_local_sgd,
              optimizer_overlap, fully_sharded)
