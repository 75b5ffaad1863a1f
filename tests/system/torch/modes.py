"""Every collective in each mode of PyTorch that belongs to a thread: `modes.py`. The thread that
ends an op, which waits for it or is one of ours, writes its result as the caller would have."""
import contextlib

import torch
import torch.distributed as dist

import group
from group import RANK, RANKS, of_all, of_rank, refused, same

SHAPE = (5, 8)
LAST = RANKS - 1
ROUNDS = 5  # a thread of ours and the waiting one race


def inputs():
    return of_all(SHAPE, torch.float32)


def holes():
    """Not contiguous: the result is copied back."""
    return torch.full((5, 16), -1.)[:, ::2]


def strided(tensor):
    view = holes()
    view.copy_(tensor)
    return view


def several():
    return [torch.empty(SHAPE) for _ in range(RANKS)]


# Each starts its op and returns the work, the object that will have the result, and the result.


def all_reduce():
    tensor = strided(inputs()[RANK])
    return dist.all_reduce(tensor, async_op=True), [tensor], [sum(inputs())]


def sparse_all_reduce():
    tensor = torch.eye(RANKS)[RANK].to_sparse()
    return dist.all_reduce(tensor, async_op=True), [tensor], [torch.ones(RANKS)]


def all_reduce_coalesced():
    tensors = [strided(inputs()[RANK]), inputs()[RANK]]
    return (dist.all_reduce_coalesced(tensors, async_op=True), tensors, [sum(inputs())] * 2)


def reduce():
    tensor = strided(inputs()[RANK])
    work = dist.reduce(tensor, LAST, async_op=True)
    return work, [tensor], [sum(inputs()) if RANK == LAST else inputs()[RANK]]


def reduce_scatter():
    output = holes()
    return (dist.reduce_scatter(output, [inputs()[RANK] + r for r in range(RANKS)], async_op=True),
            [output], [sum(inputs()) + RANKS * RANK])


def reduce_scatter_tensor():
    output = holes()
    whole = torch.cat([inputs()[RANK] + r for r in range(RANKS)])
    return (dist.reduce_scatter_tensor(output, whole, async_op=True), [output],
            [sum(inputs()) + RANKS * RANK])


def broadcast():
    tensor = strided(inputs()[RANK])
    return dist.broadcast(tensor, LAST, async_op=True), [tensor], [inputs()[LAST]]


def all_gather():
    outputs = several()
    return dist.all_gather(outputs, inputs()[RANK], async_op=True), outputs, inputs()


def all_gather_into_tensor():
    output = torch.full((5 * RANKS, 16), -1.)[:, ::2]
    return (dist.all_gather_into_tensor(output, inputs()[RANK], async_op=True), [output],
            [torch.cat(inputs())])


def all_gather_coalesced():
    outputs = [[torch.empty(SHAPE), torch.empty(SHAPE)] for _ in range(RANKS)]
    work = dist.all_gather_coalesced(outputs, [inputs()[RANK], inputs()[RANK] + 1], async_op=True)
    return work, sum(outputs, []), sum(([one, one + 1] for one in inputs()), [])


def gather():
    outputs = several() if RANK == LAST else None
    work = dist.gather(inputs()[RANK], outputs, dst=LAST, async_op=True)
    return work, outputs or [], inputs() if outputs else []


def scatter():
    output = holes()
    return (dist.scatter(output, inputs() if RANK == LAST else None, src=LAST, async_op=True),
            [output], [inputs()[RANK]])


def all_to_all():
    outputs = several()
    work = dist.all_to_all(outputs, [inputs()[RANK] + r for r in range(RANKS)], async_op=True)
    return work, outputs, [one + RANK for one in inputs()]


def all_to_all_single():
    output = torch.full((RANKS, 16), -1.)[:, ::2]
    whole = torch.full((RANKS, 8), float(RANK)) + torch.arange(RANKS)[:, None]
    expected = torch.arange(float(RANKS))[:, None].expand(RANKS, 8) + RANK
    return dist.all_to_all_single(output, whole, async_op=True), [output], [expected]


def send_and_receive():
    """Between ranks 0 and 1."""
    tensor = strided(inputs()[0] if RANK == 0 else torch.zeros(SHAPE))
    work = dist.isend(tensor, 1) if RANK == 0 else dist.irecv(tensor, 0)
    return work, [tensor], [inputs()[0]]


COLLECTIVES = (all_reduce, sparse_all_reduce, all_reduce_coalesced, reduce, reduce_scatter,
               reduce_scatter_tensor, broadcast, all_gather, all_gather_into_tensor,
               all_gather_coalesced, gather, scatter, all_to_all, all_to_all_single,
               send_and_receive)


MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad,
         "enable_grad": torch.enable_grad,
         "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
         "autocast in inference": lambda: both(torch.inference_mode(), torch.autocast("cpu")),
         "none": contextlib.nullcontext}


@contextlib.contextmanager
def both(one, other):
    with one, other:
        yield


def ended_by_wait(work, _):
    work.wait()


def ended_by_future(work, _):
    future = work.get_future() if isinstance(work, dist.Work) else work
    future.wait()


def ended_after_the_mode(work, leave):
    leave()
    work.wait()


def every_collective():
    for name, mode in MODES.items():
        for start in COLLECTIVES:
            for end in (ended_by_wait, ended_by_future, ended_after_the_mode):
                for _ in range(ROUNDS):
                    with contextlib.ExitStack() as stack:
                        stack.enter_context(mode())
                        work, found, expected = start()
                        end(work, stack.close)
                        for one, other in zip(found, expected, strict=True):
                            same(one.to_dense() if one.is_sparse else one, other,
                                 (name, start.__name__, end.__name__))


def facts():
    return (torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
            torch.is_autocast_cpu_enabled())


def callbacks():
    """They run as if the caller called them."""
    for name, mode in MODES.items():
        with mode():
            expected = facts()
            work = dist.all_reduce(torch.ones(3), async_op=True)
            found = work.get_future().then(
                lambda done: (done.value()[0].add_(1).sum().item(), facts())).wait()
        assert found == (3. * (RANKS + 1), expected), (name, found, expected)


def inference_tensors_outside_of_the_mode():
    """PyTorch forbids writing to them. The error says which op failed, and others continue."""
    with torch.inference_mode():
        outputs = several()
    work = dist.all_gather(outputs, inputs()[RANK], async_op=True)
    print(refused(work.wait, RuntimeError, "all_gather ",
                  "(float32 [5, 8]): its result cannot be written: ", "inference tensor"))
    dist.barrier()


if __name__ == "__main__":
    group.start()
    assert RANKS == 2
    group.run(every_collective, callbacks, inference_tensors_outside_of_the_mode)
