"""torch.profiler shows the backend's calls under their names, with shapes, from call to end."""
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

import group
from group import RANK, RANKS, refused


def profiled(record_shapes=True):
    return profile(activities=[ProfilerActivity.CPU], record_shapes=record_shapes)


def of_ours(profiler):
    return [event for event in profiler.events() if event.name.startswith("sluice::")]


def names_and_shapes():
    tensor = torch.ones(3, 5)
    with profiled() as profiler:
        dist.all_reduce(tensor)
        dist.broadcast(torch.ones(7), 0)
        dist.barrier()
        if RANK == 0:
            dist.send(torch.ones(2), 1)
        else:
            dist.recv(torch.ones(2), 0)
    found = {event.name: event.input_shapes for event in of_ours(profiler)}
    message = "sluice::send" if RANK == 0 else "sluice::recv"
    assert found == {"sluice::all_reduce": [[3, 5]], "sluice::broadcast": [[7]],
                     "sluice::barrier": [], message: [[2]]}, found


def without_shapes():
    with profiled(record_shapes=False) as profiler:
        dist.all_reduce(torch.ones(3))
    (event,) = of_ours(profiler)
    assert not event.input_shapes and event.cpu_time_total > 0


def from_call_to_end():
    """Even if another thread, or nobody, waits for it, and if the call fails."""
    with profiled() as profiler:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        work.get_future().wait()
        refused(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND), ValueError)
    assert [event.name for event in of_ours(profiler)] == ["sluice::all_reduce"]
    path = f"{os.environ['STORE']}.{RANK}.json"
    profiler.export_chrome_trace(path)
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)  # of a PyTorch without Kineto, as Debian's is, a list
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    assert "sluice::all_reduce" in [event.get("name") for event in events]


def still_under_way_when_the_profiler_ends():
    with profiled():
        work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()


def training():
    model = nn.parallel.DistributedDataParallel(nn.Linear(10, 3))
    with profiled() as profiler:
        model(torch.ones(2, 10)).sum().backward()
    assert [[33]] in [event.input_shapes for event in of_ours(profiler)
                      if event.name == "sluice::all_reduce"]


if __name__ == "__main__":
    group.start()
    assert RANKS == 2
    group.run(names_and_shapes, without_shapes, from_call_to_end,
              still_under_way_when_the_profiler_ends, training)
