"""Failures, and which ranks get errors: `failures.py SCENARIO`. The test waits for its output."""
import contextlib
import datetime
import os
import re
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import group
from group import RANK, RANKS, refused

SECOND = datetime.timedelta(seconds=1)


def stops_here():
    print("stopped", flush=True)
    time.sleep(600)


def missing_rank():
    """The last of three ranks does not run for a while."""
    group.start(timeout=SECOND * 60)
    one_second = dist.new_group(timeout=SECOND)
    pair = dist.new_group([0, RANKS - 1], timeout=SECOND)
    others = dist.new_group(range(RANKS - 1))
    if RANK == RANKS - 1:
        stops_here()
    # On a busy machine another rank may be late, too, when a short time-out is over.
    told = f"it waits for (rank [0-9]+, )*rank {RANKS - 1}$"
    tensor = torch.ones(3, 5)
    error = refused(lambda: dist.all_reduce(tensor, group=one_second), RuntimeError,
                    "all_reduce 1 (float32 [3, 5])", "1000 ms")
    names(error, told)
    work = dist.all_reduce(tensor, group=one_second, async_op=True)
    future = work.get_future()
    error = refused(lambda: work.wait(SECOND / 10), RuntimeError, "all_reduce 2", "100 ms")
    names(error, told)
    error = refused(future.wait, RuntimeError, "all_reduce 2", "1000 ms")
    names(error, told)
    refused(work.wait, RuntimeError, "all_reduce 2", "1000 ms")
    assert work.is_completed()
    work = dist.all_reduce(tensor, group=one_second, async_op=True)
    begin = time.monotonic()
    while not work.is_completed():  # ends by the group's time-out, too
        assert time.monotonic() < begin + 60
        time.sleep(0.01)
    names(refused(work.wait, RuntimeError, "all_reduce 3", "1000 ms"), told)
    error = refused(lambda: one_second.monitored_barrier(SECOND / 2), RuntimeError, "500 ms")
    names(error, told)
    sparse = torch.ones(10).to_sparse()
    error = refused(lambda: dist.all_reduce(sparse, group=one_second), RuntimeError, "sparse")
    names(error, told)
    if RANK == 0:
        error = refused(lambda: dist.broadcast(tensor, 0, group=pair), RuntimeError, "broadcast 1")
        names(error, f"rank 1 .global rank {RANKS - 1}.$")
    dist.barrier(group=others)  # if one ended, the others would get that as the reason
    print("told", flush=True)


def names(error, pattern):
    assert re.search(pattern, str(error).split("\n")[0]), f"{pattern} in {error}"


def killed_rank():
    """The last rank prints when it may be killed. The error of the pending work names the op."""
    group.start()
    model = DistributedDataParallel(torch.nn.Linear(5, 3))
    dist.barrier()
    if RANK == RANKS - 1:
        stops_here()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    future = work.get_future()
    behind = torch.ones(100).to_sparse()
    more = dist.all_reduce(behind, async_op=True)
    told = f"rank {RANKS - 1} is lost"
    refused(work.wait, RuntimeError, told, "all_reduce ", "(float32 [1000]): ", "last heard")
    refused(future.wait, RuntimeError, told, "(float32 [1000]): ")
    refused(more.wait, RuntimeError, told, "sparse all_reduce ")
    refused(lambda: dist.all_reduce(torch.ones(3)), RuntimeError, told, "(float32 [3]): ")
    refused(model(torch.ones(5)).sum().backward, RuntimeError, told, "all_reduce ", "float32 [18]")
    print("told", flush=True)


def raises():
    """On the last rank an exception ends the use of a group, and then the program."""
    group.start()
    told = f"rank {RANKS - 1} failed: an exception"
    groups = [dist.new_group(range(RANKS)) for _ in range(2)]
    for error, says in ((ValueError(), told), (SystemExit(), f"rank {RANKS - 1} left")):
        one = groups.pop()
        if RANK == RANKS - 1:
            with contextlib.suppress(type(error)):
                try:
                    raise error
                finally:
                    dist.destroy_process_group(one)
                    del one
        else:
            refused(lambda: dist.all_reduce(torch.ones(3), group=one), RuntimeError, says)
    if RANK == RANKS - 1:
        raise ValueError("the program ends")
    refused(lambda: dist.all_reduce(torch.ones(3)), RuntimeError, told)
    print("told", flush=True)


def what_ends_a_group():
    """Errors that end only one op: see docs/torch.md."""
    group.start()
    hasty = dist.new_group(timeout=SECOND)
    tensor = torch.ones(10)

    refused(lambda: dist.broadcast(torch.ones(3), RANKS), ValueError)  # begins nothing
    sums(hasty)

    if RANK == 0:  # late: the others come when this rank's time-out has passed
        refused(lambda: dist.all_reduce(tensor, group=hasty), RuntimeError, "1000 ms")
        dist.barrier()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(10), group=hasty)
    sums(hasty)

    # Messages that differ end those of their direction.
    if RANK == 0:
        refused(lambda: dist.send(torch.ones(3), 1, group=hasty), RuntimeError, "message 0")
        refused(lambda: dist.send(torch.ones(4), 1, group=hasty), RuntimeError, "message 0")
        dist.recv(tensor, 1, group=hasty)
    elif RANK == 1:
        refused(lambda: dist.recv(torch.ones(4), 0, group=hasty), RuntimeError, "message 0")
        refused(lambda: dist.recv(torch.ones(4), 0, group=hasty), RuntimeError, "message 0")
        dist.send(tensor, 0, group=hasty)
    sums(hasty)

    # Collectives that differ end the group, and no other.
    refused(lambda: dist.all_reduce(torch.ones(10 + RANK), group=hasty), RuntimeError,
            "different collectives")
    refused(lambda: dist.barrier(group=hasty), RuntimeError, "different collectives")
    refused(lambda: dist.send(tensor, (RANK + 1) % RANKS, group=hasty), RuntimeError,
            "different collectives")
    sums(None)
    print("told", flush=True)


def sums(over):
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=over)
    assert (tensor == RANKS).all()


def mismatch():
    """Ranks that call different ops get an error that names both."""
    def told(call, *parts):
        groups.append(dist.new_group())
        refused(lambda: call(groups[-1]), RuntimeError, "different collectives", *parts)

    group.start()
    groups = []
    odd = RANK % 2
    told(lambda g: dist.all_reduce(torch.ones(10 + odd), group=g), "element count", "10", "11")
    types = torch.float32, torch.int32
    told(lambda g: dist.all_reduce(torch.ones(10, dtype=types[odd]), group=g), "float", "int32")
    bytes_ = [torch.ones(10, dtype=dtype) for dtype in (torch.bool, torch.uint8)]
    told(lambda g: dist.all_reduce(bytes_[odd], dist.ReduceOp.BXOR, group=g),
         "all_reduce of uint8", "all_reduce of bool")
    told(lambda g: dist.all_gather([torch.ones(4)] * 2, torch.ones(4), group=g) if odd
         else dist.all_gather_into_tensor(torch.ones(8), torch.ones(4), group=g),
         " has all_gather of float32", " has all_gather_into_tensor of float32")
    told(lambda g: dist.broadcast(torch.ones(10), odd, group=g), "root")
    square = torch.ones(5, 5, 2)
    told(lambda g: dist.all_reduce(square.transpose(0, 1 + odd), group=g),
         " has all_reduce of float32, dimensions by stride 2, 1, 0 (checksum of sizes ",
         " has all_reduce of float32, dimensions by stride 1, 0, 2 (checksum of sizes ")
    told(lambda g: dist.all_reduce(torch.ones(64).to_sparse() if odd else torch.ones(1), group=g))
    told(lambda g: dist.all_reduce(torch.ones(120 + odd, 8).to_sparse(), group=g),
         "key bound", "968", "960")
    told(lambda g: dist.all_reduce(torch.ones(3), group=g) if odd else dist.barrier(group=g))

    def differ(shape, tag, dtype, *parts):
        def call(g):
            if RANK == 0:
                dist.send(torch.ones(3), 1, group=g)
            else:
                dist.recv(torch.ones(shape, dtype=dtype), 0, group=g, tag=tag)
        told(call, *parts, "message 0 from rank 0 to rank 1")

    differ(3, 1, torch.float32, "has tag")
    differ(4, 0, torch.float32, "has element count")
    differ(3, 0, torch.int32, "has element type", "float", "int32")
    dist.barrier()
    print("told", flush=True)


def ends_with_works_in_flight():
    """The interpreter just ends; its group has works that nobody waits for."""
    group.start()
    dist.barrier()
    if RANK == RANKS - 1:
        stops_here()
    dist.all_reduce(torch.ones(1_000_000), async_op=True).get_future().then(lambda done: None)
    dist.all_reduce(torch.ones(100).to_sparse(), async_op=True)
    works.append(dist.all_reduce(torch.ones(100), async_op=True))
    print("ending", flush=True)


works = []  # lives on beyond the group


def dropped_group():
    """It is destroyed with works pending, and then used."""
    group.start()
    other = dist.new_group()
    dist.barrier()
    if RANK == RANKS - 1:
        stops_here()
    work = dist.all_reduce(torch.ones(10), group=other, async_op=True)
    future = work.get_future()
    sparse = dist.all_reduce(torch.ones(10).to_sparse(), group=other, async_op=True)
    behind = dist.all_reduce(torch.ones(10), group=other, async_op=True)
    asked_late = dist.all_reduce(torch.ones(10), group=other, async_op=True)
    dist.destroy_process_group(other)
    del other
    refused(work.wait, RuntimeError)
    refused(future.wait, RuntimeError)
    refused(sparse.wait, RuntimeError)
    refused(behind.wait, RuntimeError)
    refused(asked_late.get_future().wait, RuntimeError)
    print("told", flush=True)


def joins():
    group.start(timeout=SECOND * 2)


def misspelt_settings():
    for name, value, told in (("stream", 1, "did you mean 'streams'?"), ("mtu", 5, "mtu must be"),
                              ("streams", "many", "streams must be")):
        refused(lambda: group.start(pg_options={name: value}), ValueError, told)
    os.environ["SLUICE_HISTORY"] = "3"
    refused(group.start, ValueError, "SLUICE_HISTORY must be")
    print("told", flush=True)


def one_cannot_join():
    """The others get the reason long before their time-outs."""
    if RANK == 1:
        refused(lambda: group.start(pg_options={"stream": 1}), ValueError, "did you mean")
    else:
        refused(group.start, RuntimeError, "rank 1 cannot join", "did you mean 'streams'?")
    print("told", flush=True)


def disjoint_groups_made_by_their_members():
    """Each rank calls new_group only for its own group: a group is found by its members."""
    group.start()
    mine = [1, 2] if RANK in (1, 2) else [0, 3]
    for _ in range(3):
        pair = dist.new_group(mine)
        tensor = torch.tensor([10 ** RANK])
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == sum(10 ** rank for rank in mine), (mine, tensor)
    print("told", flush=True)


def groups_in_another_order():
    """Rank 1 makes the smaller one first. Nobody waits for its time-out, and all can go on."""
    group.start()
    everyone, some = list(range(RANKS)), list(range(RANKS - 1))
    refused(lambda: dist.new_group(some if RANK == 1 else everyone), RuntimeError,
            "group of ranks 0, 1,", "one of ranks 0, 1, 2 ", "in the same order")
    sums(dist.new_group())
    print("told", flush=True)


def groups_that_wait_for_others():
    """The last two of four ranks never call new_group, but the first two end."""
    group.start()
    if RANK < 2:
        dist.new_group([0, 1, RANK + 2])
    print("told", flush=True)


def one_cannot_open_its_port():
    if RANK == 1:
        os.environ["SLUICE_EAL_ARGS"] = "--no-such-argument"
        refused(group.start, ValueError, "DPDK does not start")
    else:
        refused(group.start, RuntimeError, "rank 1 cannot join: DPDK does not start")
    print("told", flush=True)


def interrupted():
    """It is interrupted while it waits for the others for ten minutes."""
    os.environ["SLUICE_JOIN_TIMEOUT_MS"] = "600000"
    try:
        group.start(timeout=SECOND * 600)
    except KeyboardInterrupt:
        print("told", flush=True)


def one_has_another_secret():
    """The others' wait for it is bounded, and then they get the reason."""
    if RANK == 1:
        os.environ["SLUICE_SECRET"] = "another-secret-than-that-of-the-others"
    error = refused(group.start, RuntimeError)
    if RANK != 1:
        names(error, "rank 1 cannot join.*secret")
    print("told", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
