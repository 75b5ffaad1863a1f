"""Every collective on a GPU's tensors (DEV=cpu: the CPU's) beside what must come out: dtypes,
reductions, strides, lists, messages, sparse tensors, encodings, streams, a model that is
trained."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import group
from group import RANK, RANKS, of_all, of_rank

DEV = os.environ.get("DEV", "cuda")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64]


def mine(shape, dtype=torch.float32, seed=0):
    return of_rank(RANK, shape, dtype, seed).to(DEV)


def same(found, expected, what=None):
    group.same(found.cpu(), expected, what)


def method(name):
    """Of the default group, which PyTorch 2 keeps behind another."""
    whole = group.default()
    holder = whole if hasattr(whole, name) else whole._get_backend(torch.device(DEV))
    return getattr(holder, name)


def reductions():
    for dtype in DTYPES:
        everyone = torch.stack(of_all((1000,), dtype))
        for op, expected in [(dist.ReduceOp.SUM, everyone.sum(0).to(dtype)),
                             (dist.ReduceOp.MIN, everyone.amin(0)),
                             (dist.ReduceOp.MAX, everyone.amax(0))]:
            tensor = mine((1000,), dtype)
            dist.all_reduce(tensor, op)
            same(tensor, expected, (dtype, op))
        tensor = mine((1000,), dtype)
        dist.reduce(tensor, 0)
        if RANK == 0:
            same(tensor, everyone.sum(0).to(dtype), dtype)


def moves():
    everyone = of_all((3, 70), torch.float32)
    found = [torch.empty(3, 70, device=DEV) for _ in range(RANKS)]
    dist.all_gather(found, mine((3, 70)))
    for one, expected in zip(found, everyone):
        same(one, expected)
    tensor = mine((3, 70))
    dist.broadcast(tensor, RANKS - 1)
    same(tensor, everyone[-1])
    one = torch.empty(3, 70, device=DEV)
    dist.scatter(one, [t.to(DEV) for t in everyone] if RANK == 0 else None, 0)
    same(one, everyone[RANK])
    dist.gather(mine((3, 70)), found if RANK == 0 else None, 0)
    parts = [torch.full((5,), float(RANK), device=DEV) for _ in range(RANKS)]
    got = [torch.empty(5, device=DEV) for _ in range(RANKS)]
    dist.all_to_all(got, parts)
    for rank, one in enumerate(got):
        same(one, torch.full((5,), float(rank)))
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    if RANKS > 1:
        work = dist.isend(mine((300,)), right)
        one = torch.empty(300, device=DEV)
        dist.recv(one, left)
        work.wait()
        same(one, of_rank(left, (300,), torch.float32))


def layouts():
    base = mine((64, 96))
    view = base[:, ::2]
    dist.all_reduce(view)
    same(view, sum(of_all((64, 96), torch.float32))[:, ::2])
    turned = mine((64, 96)).t()
    dist.all_reduce(turned)
    same(turned, sum(of_all((64, 96), torch.float32)).t())
    odd = mine((1001,))[1:]  # aligned to 4 bytes
    dist.all_reduce(odd)
    same(odd, sum(of_all((1001,), torch.float32))[1:])
    bools = mine((100,)) > 1
    dist.all_reduce(bools, dist.ReduceOp.MAX)
    same(bools, torch.stack([t > 1 for t in of_all((100,), torch.float32)]).any(0))


def others():
    tensor = (mine((500,)) / 3).contiguous()
    method("all_reduce_encoded")(tensor, "int8").wait()
    exact = sum(t / 3 for t in of_all((500,), torch.float32)) / RANKS
    assert (tensor.cpu() - exact).abs().max() < 0.05
    rows = torch.zeros(20, 4)
    rows[RANK] = 1
    sparse = rows.to_sparse(1).to(DEV)
    dist.all_reduce(sparse)
    assert sparse.to_dense().sum().item() == 4 * RANKS
    if DEV == "cuda":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            tensor = mine((1 << 20,))
            torch.cuda._sleep(50_000_000)  # what comes after it has not begun
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            doubled = tensor * 2
        side.synchronize()
        same(doubled, 2 * sum(of_all((1 << 20,), torch.float32)))


def training():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.ReLU(),
                                torch.nn.Linear(300, 10)).to(DEV)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(mine((32, 200), seed=step)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    other = flat.clone()
    dist.broadcast(other, 0)
    same(flat, other.cpu())
    assert not flat.isnan().any()


if __name__ == "__main__":
    group.start()
    if DEV == "cuda":
        torch.cuda.set_device(0)
    group.run(reductions, moves, layouts, others, training)
