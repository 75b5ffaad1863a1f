"""Sums of 100 MiB and 1 MiB on a GPU (DEV=cpu: the CPU), beside copies, sums of pinned CPU tensors,
and Gloo: medians of the slowest rank."""
import os
import statistics
import time

import torch
import torch.distributed as dist

import group
from group import RANK, RANKS

DEV = os.environ.get("DEV", "cuda")


def synchronize():
    if DEV == "cuda":
        torch.cuda.synchronize()


def timed(prepare, f, repetitions=5):
    times = []
    for _ in range(repetitions + 1):
        prepare()
        synchronize()
        dist.barrier(group=group.gloo())
        begin = time.perf_counter()
        f()
        synchronize()
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group.gloo())
    return 1e3 * statistics.median(slowest.tolist())


def main():
    for mib in 100, 1:
        elements = mib << 18
        host = torch.empty(elements, pin_memory=DEV == "cuda")
        device = torch.empty(elements, device=DEV)
        if DEV == "cuda":
            say(f"{mib} MiB: D2H {timed(list, lambda: host.copy_(device, non_blocking=True)):.2f}, "
                f"H2D {timed(list, lambda: device.copy_(host, non_blocking=True)):.2f} ms")
        for density in 1, 0.1, 0.01:
            torch.manual_seed(RANK)
            blocks = torch.rand(elements // 256) < density
            source = torch.ones(elements // 256, 256).mul_(blocks[:, None]).flatten()
            on_device = source.to(DEV)
            ours = timed(lambda: device.copy_(on_device), lambda: dist.all_reduce(device))
            pinned = timed(lambda: host.copy_(source), lambda: dist.all_reduce(host))
            theirs = timed(lambda: device.copy_(on_device),
                           lambda: dist.all_reduce(device, group=group.gloo()), 3)
            say(f"{mib} MiB, N = {RANKS}, density {density}: on the device {ours:.2f}, "
                f"pinned CPU tensors {pinned:.2f}, Gloo {theirs:.2f} ms")


def say(text):
    if RANK == 0:
        print(text, flush=True)


if __name__ == "__main__":
    group.start()
    if DEV == "cuda":
        torch.cuda.set_device(0)
    group.run(main)
