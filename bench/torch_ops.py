#!/usr/bin/env python3
"""Collectives of torch.distributed by Sluice and by Gloo, in turns, in the same processes:

    scripts/local-cluster --workers 4 -- /usr/bin/python3 bench/torch_ops.py

A round's time is that of the slowest rank; rank 0 prints medians and the median of the rounds'
ratios. `sparse` is the sum of COO tensors of 1M x 64, of which each rank has 1% of the rows, any;
`zipf` of as many popular ones: row i with a weight of 1 / (i + 1), the same rows on all ranks.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import sluice_torch  # noqa: F401: registers the backend

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
ONLY = sys.argv[2:]  # names of cases
BLOCK = 256


def dense(elements, density):
    """Blocks that are not zero lie anywhere, others on each rank."""
    def make():
        blocks = torch.rand(max(1, elements // BLOCK)) < density
        return (torch.ones(len(blocks), BLOCK) * blocks[:, None]).flatten()[:elements]
    return make


def embedding_gradient(weights, width=64, share=0.01):
    def make():
        rows = len(weights)
        chosen = torch.multinomial(weights, int(share * rows))
        return torch.sparse_coo_tensor(chosen[None], torch.ones(len(chosen), width), (rows, width))
    return make


CASES = {"8 B": (dense(2, 1), 200), "1 MiB": (dense(1 << 18, 1), 10),
         "100 MiB": (dense(25 << 20, 1), 1), "100 MiB, 10%": (dense(25 << 20, 0.1), 1),
         "100 MiB, 1%": (dense(25 << 20, 0.01), 1),
         "sparse": (embedding_gradient(torch.ones(1 << 20)), 1),
         "zipf": (embedding_gradient(1 / torch.arange(1.0, (1 << 20) + 1)), 1)}


def seconds(group, make, times):
    """The time of one op on the slowest rank."""
    tensors = [make() for _ in range(times)]
    dist.barrier(group)
    begin = time.perf_counter()
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    taken = torch.tensor((time.perf_counter() - begin) / times, dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=group)
    return float(taken)


def main():
    torch.set_num_threads(1)
    os.environ.update(RANK=os.environ["SLUICE_RANK"], WORLD_SIZE=os.environ["SLUICE_WORLD_SIZE"],
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29500"))
    dist.init_process_group("sluice")
    groups = {"sluice": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    torch.manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        print(f"{'':14} {'sluice':>12} {'gloo':>12} {'gloo/sluice':>12}")
    for name, (make, times) in CASES.items():
        if ONLY and name not in ONLY:
            continue
        taken = {which: [] for which in groups}
        for one in range(ROUNDS + 1):  # the first warms up
            for which, group in groups.items():
                taken[which].append(seconds(group, make, times))
        taken = {which: values[1:] for which, values in taken.items()}
        ratio = statistics.median(g / s for g, s in zip(taken["gloo"], taken["sluice"]))
        medians = [1000 * statistics.median(taken[which]) for which in groups]
        if dist.get_rank() == 0:
            print(f"{name:14} {medians[0]:9.3f} ms {medians[1]:9.3f} ms {ratio:12.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
