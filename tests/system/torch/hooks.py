"""DDP's communication hooks, and what Recorder counts: `hooks.py SCENARIO...`."""
import contextlib
import io
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_torch
from group import RANK, RANKS
from sluice_torch import inspection

STEPS = 5


def make():
    """Several buckets, made again after the first step; none a multiple of the block size."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 500), nn.ReLU(), nn.Linear(500, 701), nn.ReLU(),
                         nn.Linear(701, 900))


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def gradients(module, hook=None):
    """The gradients for the optimizer, step by step; the weights do not change."""
    model = DistributedDataParallel(module, bucket_cap_mb=1)
    if hook is not None:
        model.register_comm_hook(*hook)
    found = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * RANK + step)
        model.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        found.append(flat(parameter.grad for parameter in module.parameters()))
    return found


def nothing_left_out():
    plain = gradients(make())
    for hook in (sluice_torch.top_k(1.0), sluice_torch.random_k(1.0), sluice_torch.threshold(0.0),
                 sluice_torch.top_k(0.01, warm_up=STEPS)):
        compressor = hook[0]
        for mine, theirs in zip(gradients(make(), hook), plain):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
        assert compressor.density() > 0.9  # a threshold leaves out blocks that are zero
        assert compressor.calls > 2 * STEPS, "several buckets"
        assert compressor.steps == STEPS


def what_is_left_out_comes_later():
    """The sum of all that arrived, and of what is still left out on any rank, is the sum of all
    gradients."""
    plain = sum(gradients(make()))
    for hook, density in ((sluice_torch.top_k(0.1), 0.1), (sluice_torch.random_k(0.1), 0.1),
                          (sluice_torch.threshold(3e-3), None), (sluice_torch.bf16(), 1.0)):
        module, compressor = make(), hook[0]
        came = sum(gradients(module, hook))
        left = flat(map(compressor.left_out.of_parameter, module.parameters()))
        assert left.count_nonzero() > 0
        dist.all_reduce(left, op=dist.ReduceOp.AVG)
        worst = (came + left - plain).abs().max()
        rounding = 1e-6 if compressor.wire_dtype is None else 2 ** -8  # of the ranks' sum
        assert worst < rounding * plain.abs().max() + 2e-8, (density, worst)
        assert density is None or abs(compressor.density() - density) < 0.01, compressor.density()
        assert 0 < compressor.density() <= 1


def what_is_rounded_comes_later():
    """The division by the number of ranks, too. Rank 0 alone has gradients: their sum is exact."""
    module, hook = nn.Linear(300, 7, bias=False), sluice_torch.bf16()
    model = DistributedDataParallel(module)
    model.register_comm_hook(*hook)
    inputs = torch.randn(300, generator=torch.Generator().manual_seed(1))
    came, steps = torch.zeros(7, 300), 4 * STEPS
    for _ in range(steps):
        model.zero_grad()
        (model(inputs).sum() * (RANK == 0)).backward()
        came += module.weight.grad
    left = hook[0].left_out.of_parameter(module.weight).view(7, 300).clone()
    dist.all_reduce(left, op=dist.ReduceOp.AVG)
    worst = (came + left - inputs * steps / RANKS).abs().max()
    assert worst < 1e-5 * came.abs().max(), worst


def random_blocks_are_the_same_on_all_ranks():
    hook = sluice_torch.random_k(0.05, error_feedback=False)
    for came in gradients(make(), hook):
        nonzero = float((came != 0).float().mean())
        assert 0 < nonzero < 0.07, nonzero  # a union of different ones would be larger


class Bucket:
    """One parameter's gradients, in the form in which DDP passes them."""

    def __init__(self, parameter, gradients):
        self.parameter, self.gradients = parameter, gradients

    def buffer(self):
        return self.gradients

    def parameters(self):
        return [self.parameter]

    def index(self):
        return 0


def adam_of(parameter):
    """Adam after a step, of which the mean squares differ from block to block; some are zero."""
    adam = torch.optim.Adam([parameter])
    parameter.grad = torch.zeros_like(parameter)
    place = torch.arange(parameter.numel())
    parameter.grad[:] = (place // 256 % 5) * (1 + place % 3)
    adam.step()
    return adam


def library_and_tensors_agree():
    """Both agree on which blocks travel, and on every bit that travels or stays."""
    for elements in (0, 1, 255, 256, 10_000):
        adam = adam_of(nn.Parameter(torch.zeros(elements)))
        for make_hook in (lambda **o: sluice_torch.top_k(0.3, **o),
                          lambda **o: sluice_torch.top_k(0.3, wire_dtype=torch.bfloat16, **o),
                          lambda **o: sluice_torch.top_k(0.3, adam, **o),
                          lambda **o: sluice_torch.threshold(16.0, **o)):
            for feedback in (True, False):
                found = []
                for by_library in (True, False):
                    compressor, _ = make_hook(error_feedback=feedback)
                    assert compressor._one_pass is not None
                    if not by_library:
                        compressor._one_pass = None
                    generator = torch.Generator().manual_seed(elements)
                    parameter, = adam.param_groups[0]["params"]
                    sent = [compressor.compress(
                        Bucket(parameter, torch.randn(elements, generator=generator)), 3)
                        for _ in range(4)]
                    left = (compressor.left_out.of_parameter(parameter) if feedback
                            else torch.zeros(0))
                    found.append([*sent, left, torch.tensor(compressor.blocks_kept)])
                for mine, theirs in zip(*found):
                    assert torch.equal(mine, theirs), (elements, feedback)
    for gradients in (torch.ones(1024, dtype=torch.float64), torch.ones(2048)[::2]):
        compressor, _ = sluice_torch.top_k(0.5)
        sent = compressor.compress(Bucket(nn.Parameter(gradients), gradients), 2)
        assert (compressor.blocks_kept, float(sent.sum())) == (2, 256.0), sent


def blocks_that_adam_moves_most_travel():
    """Of equal gradients those of the smallest mean squares, and first those that it does not know
    of. As DDP orders parameters, over several steps."""
    parameter = nn.Parameter(torch.zeros(10 * 256))
    adam = adam_of(parameter)  # blocks 0 and 5 are unknown; then come 1 and 6, 2 and 7, ...
    compressor, _ = sluice_torch.top_k(0.4, adam)
    sent = compressor.compress(Bucket(parameter, torch.ones(10 * 256)), 1)
    assert (sent.view(10, 256)[:, 0].nonzero().flatten() == torch.tensor([0, 1, 5, 6])).all(), sent
    hook = sluice_torch.top_k(0.1, torch.optim.Adam([parameter]))
    plain, came = sum(gradients(make())), sum(gradients(make(), hook))
    assert 0 < (came - plain).norm() < plain.norm(), "before Adam's first step: by the norm alone"
    sgd = torch.optim.SGD([parameter], 0.1)
    sgd.defaults["betas"] = ()  # as if it were Adam
    sgd.state[parameter]["momentum_buffer"] = torch.zeros(2560)
    for call, said in ((lambda: sluice_torch.top_k(0.1, torch.optim.SGD([parameter], 0.1)), "SGD"),
                       (lambda: sluice_torch.top_k(0.1, sgd)[0].compress(
                           Bucket(parameter, torch.ones(2560)), 1), "exp_avg_sq")):
        expect_value_error(call, said)


def of_step(step, rank, elements):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(elements, generator=generator)


def bad_numbers_are_sent_at_once():
    """The whole block is not finite; the others are handled as without it."""
    for compressor, _ in (sluice_torch.top_k(0.01), sluice_torch.threshold(1e9),
                          sluice_torch.random_k(0.01)):
        for bad in (float("nan"), float("inf")):
            gradients = torch.ones(200 * 256)
            gradients[70 * 256 + 3] = bad
            parameter = nn.Parameter(torch.zeros(200 * 256))
            sent = compressor.compress(Bucket(parameter, gradients), 1)
            assert not sent[70 * 256 + 3].isfinite() and sent[70 * 256] == 1
            left = compressor.left_out.of_parameter(parameter)
            assert left.isfinite().all() and (left[70 * 256:71 * 256] == 0).all()


def fewer_bytes():
    sent = []
    for hook in (None, sluice_torch.top_k(0.02)):
        before = sluice_torch.bytes_sent()
        gradients(make(), hook)
        sent.append(sluice_torch.bytes_sent() - before)
    assert sent[1] < sent[0] / 4, sent  # DDP sends all weights once


def sparse_gradients():
    """They are summed as they are."""
    for hook in (sluice_torch.top_k(0.1), sluice_torch.ok_top_k(0.1)):
        module = nn.Sequential(nn.Embedding(1000, 16, sparse=True))
        model = DistributedDataParallel(module)
        model.register_comm_hook(*hook)
        model(torch.tensor([RANK, 999])).sum().backward()
        gradient = module[0].weight.grad.to_dense()
        assert (gradient[999] == 1).all()
        assert (gradient[:RANKS] == 1 / RANKS).all()


def an_overflow_passes():
    """As in a GradScaler's first steps: it is reported, and the next step is as if it had not
    been."""
    for hook in (sluice_torch.top_k(0.5), sluice_torch.threshold(1e-9), sluice_torch.bf16(),
                 sluice_torch.ok_top_k(0.5)):
        module = make()
        model = DistributedDataParallel(module)
        model.register_comm_hook(*hook)
        for factor in (float("inf"), 1.0):
            model.zero_grad()
            (model(torch.randn(8, 40)).square().mean() * factor).backward()
            finite = flat(parameter.grad for parameter in module.parameters()).isfinite().all()
            assert finite == (factor == 1.0), (hook[0], factor)


def options_are_checked():
    for call in (lambda: sluice_torch.top_k(0), lambda: sluice_torch.random_k(1.5),
                 lambda: sluice_torch.threshold(-1),
                 lambda: sluice_torch.top_k(0.5, block_elements=0),
                 lambda: sluice_torch.top_k(0.5, warm_up=-1)):
        expect_value_error(call, "expected")


def expect_value_error(call, said):
    try:
        call()
    except ValueError as error:
        assert said in str(error), error
    else:
        raise AssertionError("no ValueError")


def recorded():
    """Each rank touches two rows of 64 elements of its own, one way or the other."""
    for sparse in (False, True):
        module = nn.Embedding(1024, 64, sparse=sparse)
        recorder = sluice_torch.Recorder(module)
        for _ in range(2):
            module(torch.tensor([100 * RANK, 100 * RANK + 50])).sum().backward()
            module.zero_grad()
        recorder.close()
        layer, = recorder.layers
        assert (layer.name, layer.elements, layer.steps) == ("weight", 65536, 2)
        for size, blocks in ((32, 4), (64, 2), (256, 2), (1024, 2)):
            assert layer.density(size) == blocks / (65536 // size), (sparse, size)
            assert layer.union_density(size) == RANKS * blocks / (65536 // size), (sparse, size)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "density.json")
        recorder.save(path)
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            assert inspection.main([path, "--ranks", "4", "--gbit", "10"]) == 0
        for part in ("weight", "65,536", "best: SLUICE_BLOCK_ELEMENTS=64", "top_k(0.01)"):
            assert part in told.getvalue(), told.getvalue()
        with contextlib.redirect_stderr(told):
            assert inspection.main([path + "?"]) == 1
        assert "Recorder.save" in told.getvalue()


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
