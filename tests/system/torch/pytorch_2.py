"""Features of PyTorch 2's backends, compared with arithmetic or Gloo: `pytorch_2.py collectives`,
`training` or `ends`. On the CPU, or a GPU (DEV=cuda)."""
import copy
import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import group
import sluice_torch
from group import DEVICE, RANK, RANKS, of_all, of_rank, refused, same

STEPS = 4
SECOND = datetime.timedelta(seconds=1)


def total(shape, seed):
    return sum(of_all(shape, torch.float32, seed))


# -------------------------------------------------------------------------------- its collectives

def coalesced():
    shapes = [(RANKS * 2, 5), (RANKS * 7,), (RANKS, 3, 2)]
    inputs = [of_rank(RANK, shape, torch.float32, i) for i, shape in enumerate(shapes)]
    parts = [torch.empty(shape[0] // RANKS, *shape[1:]) for shape in shapes]
    ours = group.default()
    ours.reduce_scatter_tensor_coalesced(parts, inputs).wait()
    for i, (shape, part) in enumerate(zip(shapes, parts)):
        same(part, total(shape, i).chunk(RANKS)[RANK])
    wholes = [torch.empty(shape) for shape in shapes]
    ours.allgather_into_tensor_coalesced(wholes, parts).wait()
    for i, (shape, whole) in enumerate(zip(shapes, wholes)):
        same(whole, total(shape, i))
    sums = [one.clone() for one in inputs]
    with dist._coalescing_manager(async_ops=True) as block:
        for one in sums:
            dist.all_reduce(one)
    block.wait()
    for i, (shape, one) in enumerate(zip(shapes, sums)):
        same(one, total(shape, i))
    wholes = [torch.empty(shape) for shape in shapes]
    with dist._coalescing_manager():
        for whole, part in zip(wholes, parts):
            dist.all_gather_into_tensor(whole, part)
    for whole, one in zip(wholes, sums):
        same(whole, one)
    parts = [torch.empty_like(part) for part in parts]
    with dist._coalescing_manager():
        for part, one in zip(parts, inputs):
            dist.reduce_scatter_tensor(part, one)
    for part, one in zip(parts, sums):
        same(part, one.chunk(RANKS)[RANK])
    received = torch.empty(5)
    with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as block:
        dist.isend(torch.full((5,), float(RANK)), (RANK + 1) % RANKS)
        dist.irecv(received, (RANK - 1) % RANKS)
    block.wait()
    same(received, torch.full((5,), float((RANK - 1) % RANKS)))
    refused(lambda: ours.reduce_scatter_tensor_coalesced(parts, inputs[:2]), ValueError,
            "2 tensors of all ranks' parts and 3 of one rank's")
    refused(lambda: ours.allgather_into_tensor_coalesced(wholes, sums), ValueError, "elements")
    refused(lambda: ours._end_coalescing(torch.device(DEVICE)), ValueError,
            "no start_coalescing came before")


def a_failed_block_leaves_no_trace():
    """In the backend. (PyTorch itself continues to record calls in place of making them.)"""
    tensor = torch.ones(10)
    try:
        with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True):
            dist.isend(tensor, (RANK + 1) % RANKS, tag=-1)
    except ValueError as error:
        assert "tag -1" in str(error), error
    else:
        raise AssertionError("a tag of -1 was taken")
    dist.distributed_c10d._world.pg_coalesce_state.clear()
    for _ in range(2):
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        same(tensor, torch.full((10,), float(RANKS)))


def functional():
    call, ranks = functional_collectives, list(range(RANKS))
    shape = (RANKS * 4, 3)
    mine, expected = of_rank(RANK, shape, torch.float32), total(shape, 0)
    same(call.all_reduce(mine, "sum", ranks).clone(), expected)
    same(call.reduce_scatter_tensor(mine, "sum", 0, ranks).clone(), expected.chunk(RANKS)[RANK])
    same(call.all_gather_tensor(mine, 0, ranks).clone(),
         torch.cat(of_all(shape, torch.float32)))
    same(call.broadcast(mine, 1, ranks).clone(), of_rank(1, shape, torch.float32))
    same(call.all_to_all_single(mine, None, None, ranks).clone(),
         torch.cat([one.chunk(RANKS)[RANK] for one in of_all(shape, torch.float32)]))
    pair = [mine, 2 * mine]
    for found, times in zip(call.all_reduce_coalesced(pair, "sum", ranks), (1, 2)):
        same(found.clone(), times * expected)
    parts = call.reduce_scatter_tensor_coalesced(pair, "sum", [0, 0], ranks)
    for found, times in zip(parts, (1, 2)):
        same(found.clone(), times * expected.chunk(RANKS)[RANK])
    for found, times in zip(call.all_gather_into_tensor_coalesced(list(parts), ranks), (1, 2)):
        same(found.clone(), times * expected)


def distributed_tensors():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    whole = of_rank(0, (RANKS * 4, RANKS * 2), torch.float32)
    other = of_rank(1, (RANKS * 2, 5), torch.float32)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    same(rows.to_local(), whole.chunk(RANKS)[RANK])
    same(rows.full_tensor(), whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    same(columns.to_local(), whole.chunk(RANKS, 1)[RANK])
    product = columns @ distribute_tensor(other, mesh, [Shard(0)])
    assert isinstance(product.placements[0], Partial)
    same(product.redistribute(mesh, [Replicate()]).to_local(), whole @ other)
    same(product.redistribute(mesh, [Shard(0)]).to_local(), (whole @ other).chunk(RANKS)[RANK])
    same((rows @ distribute_tensor(other, mesh, [Replicate()])).full_tensor(), whole @ other)


def premultiplied():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            by_half = dist._make_nccl_premul_sum(factor)
            mine = of_rank(RANK, (RANKS * 4,), dtype)
            expected = sum(of_all((RANKS * 4,), torch.float64)) / 2
            tensor = mine.clone()
            dist.all_reduce(tensor, by_half)
            same(tensor, expected.to(dtype))
            part = torch.empty(4, dtype=dtype)
            dist.reduce_scatter_tensor(part, mine, by_half)
            same(part, expected.to(dtype).chunk(RANKS)[RANK])
            same(mine, of_rank(RANK, (RANKS * 4,), dtype))


def device_maps():
    """Sluice only for tensors of the CPU, and another backend for others."""
    mixed = dist.new_group(backend="cpu:sluice,cuda:gloo")
    tensor = torch.ones(10, device="cpu")
    dist.all_reduce(tensor, group=mixed)
    same(tensor, torch.full((10,), float(RANKS), device="cpu"))
    assert sluice_torch.bytes_sent(mixed) >= 0
    refused(lambda: sluice_torch.bytes_sent(group.gloo()), ValueError, "Gloo", "sluice expected")


def capabilities():
    ours = group.backend()
    assert ours.name() == "sluice" and not ours.supports_splitting
    assert (ours.rank(), ours.size()) == (RANK, RANKS)
    refused(lambda: ours._set_default_timeout(0 * SECOND), ValueError, "0 ms; more than 0 expected")
    ours._set_default_timeout(SECOND)
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        refused(lambda: dist.all_reduce(torch.ones(3)), RuntimeError, "not done after 1000 ms",
                "rank 1")
        store.set("told", "")
    store.wait(["told"])
    ours._set_default_timeout(60 * SECOND)
    if RANK != 0:
        dist.all_reduce(torch.ones(3))
    dist.barrier()


# --------------------------------------------------------------------------------------- training

def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(),
                         nn.Linear(40, 10))


def batches(count=STEPS):
    generator = torch.Generator().manual_seed(RANK)
    return [torch.randn(8, 30, generator=generator, device="cpu").to(DEVICE) for _ in range(count)]


def trained(model, make_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05),
            forward=lambda model, batch: model(batch)):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = forward(model, batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def close(mine, theirs):
    assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), rtol=1e-5), (mine, theirs)


def as_over_gloo(train):
    close(train(group.default()), train(group.gloo()))


def fully_sharded():
    """Compared with one rank that trains on all ranks' batches; also with a factor of its own,
    which makes PyTorch premultiply. On the CPU, that of 2.6 asks streams for features that only
    CUDA's have, and cannot gather parameters twice, with Gloo as with Sluice."""
    for name in "record_event", "wait_event":
        if not hasattr(torch.cpu.Stream, name):
            setattr(torch.cpu.Stream, name, lambda self, event=None: event)
    for factor in (None, float(RANKS)):
        model = make_model()
        mesh = DeviceMesh.from_group(group.default(), DEVICE, mesh=list(range(RANKS)))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
        if factor is not None:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_reduce_scatter_divide_factor(factor)
        theirs = DistributedDataParallel(make_model(), process_group=group.gloo())
        close(trained(model), trained(theirs))


def data_parallel(over, **options):
    return DistributedDataParallel(make_model(), process_group=over, **options)


def static_graph():
    as_over_gloo(lambda over: trained(data_parallel(over, static_graph=True)))


def joined():
    """Ranks with different numbers of batches."""
    def train(over):
        model, losses = data_parallel(over), []
        with Join([model]):
            for batch in batches(STEPS + RANK):
                loss = model(batch).square().mean()
                loss.backward()
                losses.append(loss.item())
        return losses + [one.detach().sum().item() for one in model.parameters()]
    as_over_gloo(train)


def zero_redundancy():
    as_over_gloo(lambda over: trained(
        data_parallel(over), lambda parameters: ZeroRedundancyOptimizer(
            parameters, torch.optim.Adam, process_group=over, lr=0.01)))


def accumulated():
    def train(over):
        model = data_parallel(over)
        *first, last = batches()
        with model.no_sync():
            for batch in first:
                model(batch).square().mean().backward()
        model(last).square().mean().backward()
        return [one.grad.sum().item() for one in model.parameters()]
    as_over_gloo(train)


def mixed_precision():
    def forward(model, batch):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return model(batch).float()
    as_over_gloo(lambda over: trained(data_parallel(over), forward=forward))


def compiled():
    as_over_gloo(lambda over: trained(torch.compile(data_parallel(over), backend="aot_eager")))


def checkpoints():
    place = os.environ["STORE"] + "-checkpoint"
    model = data_parallel(group.default())
    trained(model)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=place)
    kept, state = copy.deepcopy(model.state_dict()), data_parallel(group.default()).state_dict()
    checkpoint.load({"model": state}, checkpoint_id=place)
    for name, value in kept.items():
        same(state[name], value, name)


def pipeline():
    def train(over):
        model = make_model()
        stage = PipelineStage(model[:2] if RANK == 0 else model[2:], RANK, RANKS,
                              torch.device(DEVICE), group=over)
        schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, to: (out - to).square().mean())
        torch.manual_seed(2)
        given, target = torch.randn(16, 30), torch.randn(16, 10)
        losses = []
        if RANK == 0:
            schedule.step(given)
        else:
            schedule.step(target=target, losses=losses)
        return [loss.item() for loss in losses] + [one.grad.sum().item()
                                                   for one in stage.submod.parameters()]
    as_over_gloo(train)


# -------------------------------------------------------------------------------------- its end

def aborted():
    """A rank that waits for the one that aborts gets an error."""
    other = dist.new_group()
    ours = sluice_torch.groups.backend_of(other, "the test")
    if RANK == 0:
        work = dist.all_reduce(torch.ones(3), group=other, async_op=True)
        ours.abort()
        refused(work.wait, RuntimeError)
    else:
        error = refused(lambda: dist.barrier(group=other), RuntimeError)
        assert "rank 0 failed" in str(error) or "differ" in str(error), error
    refused(lambda: dist.barrier(group=other), RuntimeError)
    dist.barrier()


def shut_down():
    other = dist.new_group()
    dist.barrier(group=other)
    ours = sluice_torch.groups.backend_of(other, "the test")
    ours.shutdown()
    ours.shutdown()
    refused(lambda: dist.barrier(group=other), RuntimeError)
    dist.barrier()


SCENARIOS = {
    "collectives": (coalesced, a_failed_block_leaves_no_trace, functional, distributed_tensors,
                    premultiplied, device_maps, capabilities),
    "training": (fully_sharded, static_graph, joined, zero_redundancy, accumulated, mixed_precision,
                 compiled, checkpoints, pipeline),
    "ends": (aborted, shut_down),
}

if __name__ == "__main__":
    if DEVICE != "cpu":
        torch.set_default_device(DEVICE)
    group.start()
    group.run(*SCENARIOS[sys.argv[1]])
