"""Random programs of collectives and messages, in which ranks come early or late, drop handles, ask
for futures, and wait in any order: `any_order.py SEEDS...`. Every op ends, with the right result.

All ranks draw the same ops from the seed, and each draws for itself how it treats them. A rank
starts all in that order, except its side of a late message, which it starts at the end. It waits
for any op that it has started; for the other side of a late message it waits only at the end. So
a rank only waits for ranks that come.
"""
import random
import sys

import torch
import torch.distributed as dist

import group
from group import RANK, RANKS, same

OPS = 40


class Op:
    """The part that all ranks know: `late` is the rank that starts it at the end, if there is one.
    That is the same for all messages of a route, which meet in the order of the calls."""

    def __init__(self, shared, number, late):
        self.number = number
        self.late = None
        self.kind = shared.choice([dense, sparse, split, message, message])
        if self.kind is message:
            self.source, self.target = shared.sample(range(RANKS), 2)
            route = self.source, self.target
            self.late = late.setdefault(route, shared.choice([None, *route]))
        self.sizes = [[shared.randrange(4) for _ in range(RANKS)] for _ in range(RANKS)]
        if shared.random() < 0.5:
            self.sizes = [[2] * RANKS] * RANKS

    def concerns_me(self):
        return self.kind is not message or RANK in (self.source, self.target)


def dense(op, _):
    tensor = torch.full((100 * op.number,), RANK + 1.)
    total = sum(range(1, RANKS + 1))
    return dist.all_reduce(tensor, async_op=True), tensor, torch.full_like(tensor, total)


def sparse(op, _):
    tensor = torch.eye(RANKS + op.number)[RANK].to_sparse()
    expected = torch.cat([torch.ones(RANKS), torch.zeros(op.number)])
    return dist.all_reduce(tensor, async_op=True), tensor, expected


def split(op, own):
    """If all parts have the same size, a rank may omit it."""
    sent, received = op.sizes[RANK], [row[RANK] for row in op.sizes]
    tensor, output = torch.full((sum(sent),), float(RANK)), torch.empty(sum(received))
    implicit = sent == received == [2] * RANKS and own.random() < 0.5
    work = dist.all_to_all_single(output, tensor, *(() if implicit else (received, sent)),
                                  async_op=True)
    return work, output, torch.repeat_interleave(torch.arange(float(RANKS)), torch.tensor(received))


def message(op, _):
    expected = torch.full((10,), float(op.number))
    if RANK == op.source:
        tensor = expected.clone()
        return dist.isend(tensor, op.target), tensor, expected
    tensor = torch.empty(10)
    return dist.irecv(tensor, op.source), tensor, expected


def run(seed):
    shared, own = random.Random(seed), random.Random(1000 * seed + RANK + 1)
    routes, late, started, ended = {}, [], [], []

    def end(work, tensor, expected):
        work.wait()
        same(tensor.to_dense() if tensor.is_sparse else tensor, expected, seed)

    for number in range(1, OPS + 1):
        op = Op(shared, number, routes)
        if not op.concerns_me():
            continue
        if op.late == RANK:
            late.append(op)
            continue
        work, tensor, expected = op.kind(op, own)
        fate = own.choice(["drop", "wait", "future", "wait for the future"])
        if fate != "drop":
            entry = (work.get_future() if "future" in fate else work), tensor, expected
            (ended if op.late is not None else started).append(entry)
        del work
        while started and own.random() < 0.4:
            end(*started.pop(own.randrange(len(started))))
    ended += [op.kind(op, own) for op in late] + started
    own.shuffle(ended)
    for entry in ended:
        end(*entry)
    dist.barrier()


if __name__ == "__main__":
    group.start()
    for number in map(int, sys.argv[1:]):
        try:
            run(number)
        except BaseException:
            print("in seed", number, file=sys.stderr)
            raise
    dist.destroy_process_group()
