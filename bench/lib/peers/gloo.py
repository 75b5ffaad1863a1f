"""A rank of the peers over PyTorch's Gloo: all_reduce of a dense tensor, and of a sparse one (COO,
rows of one block each) made from it. It sums fp32 in place, as requests over a socket say: see
../ranks.py. `gloo.py SOCKET`; rank and world size are in the environment, as with torchrun."""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

BLOCK_ELEMENTS = 256


def all_reduce(tensor):
    dist.all_reduce(tensor)


def sparse_all_reduce(tensor):
    """Single elements, if the tensor does not consist of whole blocks."""
    rows = tensor.view(-1, BLOCK_ELEMENTS if len(tensor) % BLOCK_ELEMENTS == 0 else 1)
    indices = (rows != 0).any(dim=1).nonzero().t()
    sparse = torch.sparse_coo_tensor(indices, rows[indices[0]], rows.shape).coalesce()
    dist.all_reduce(sparse)
    total = sparse.coalesce()
    rows[total.indices()[0]] = total.values()


OPERATIONS = {"allreduce": all_reduce, "sparse": sparse_all_reduce}


class Request:
    def __init__(self, line):
        operation, count, nonzero, self.overlap, *numbers = line.split()
        self.operation = OPERATIONS[operation]
        self.count, self.nonzero = int(count), int(nonzero)
        self.seed, self.warmup, self.iterations, self.check = map(int, numbers)

    def tensor_of(self, rank):
        """Small whole numbers, so that sums are exact in any order."""
        blocks = -(-self.count // BLOCK_ELEMENTS)
        generator = torch.Generator().manual_seed(
            1000 * self.seed + (0 if self.overlap == "all" else rank))
        nonzero = torch.randperm(blocks, generator=generator)[:self.nonzero]
        of_block = torch.zeros(blocks)
        of_block[nonzero] = 1.0 + nonzero % 5
        of_place = 1.0 + (torch.arange(BLOCK_ELEMENTS) + 3 * rank) % 7
        return torch.outer(of_block, of_place).flatten()[:self.count].contiguous()


def run_once(operation, tensor, own):
    tensor.copy_(own)
    dist.barrier()
    start = time.perf_counter()
    operation(tensor)
    seconds = time.perf_counter() - start
    dist.barrier()  # no rank prepares its next run while others are still at this one
    return seconds


def serve(request):
    """The answer: microseconds of every iteration, and the number of wrong elements."""
    own = request.tensor_of(dist.get_rank())
    tensor = torch.empty_like(own)
    times = [run_once(request.operation, tensor, own)
             for _ in range(request.warmup + request.iterations)]
    wrong = 0
    if request.check:
        right = sum(request.tensor_of(rank) for rank in range(dist.get_world_size()))
        wrong = int((tensor != right).sum())
    words = [f"{1e6 * seconds:.3f}" for seconds in times[request.warmup:]]
    return " ".join([*words, "wrong", str(wrong)])


def main():
    torch.set_num_threads(1)  # there are as many ranks as cores, or more
    dist.init_process_group("gloo")
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(sys.argv[1])
        with driver.makefile("rw", encoding="ascii") as talk:
            print(dist.get_rank(), file=talk, flush=True)
            while line := talk.readline():
                print(serve(Request(line)), file=talk, flush=True)
    os._exit(0)  # without a shutdown of Gloo, as ranks end at different times


if __name__ == "__main__":
    main()
