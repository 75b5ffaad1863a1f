"""Tensors in memory that the ranks of this host may share: `memory.py SCENARIO...`."""
import gc
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import group
import sluice_torch
from group import RANK, RANKS

STEPS = 5


def is_shared(tensor):
    """Whether all of it lies in regions of this process's own arena."""
    begin = tensor.storage().data_ptr()
    end = begin + tensor.storage().nbytes()
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if "memfd:sluice-arena" in line and " rw-s " in line and first <= begin < last:
                return end <= last
    return False


def scoped():
    """Tensors that a thread makes within a scope, if they are large."""
    before = torch.ones(100_000)
    with sluice_torch.shared_memory():
        small, large = torch.ones(100), torch.ones(100_000)
        with sluice_torch.shared_memory():
            copy = before.clone()
        after_inner = torch.zeros(100_000)
        others = []
        thread = threading.Thread(target=lambda: others.append(torch.ones(100_000)))
        thread.start()
        thread.join()
        try:
            torch.empty(100_000, pin_memory=True)  # which this allocator does not serve
        except RuntimeError as error:
            assert any(word in str(error) for word in ("CUDA", "accelerator", "pin_memory")), error
        model = nn.Linear(100, 100)
        array = torch.full((50_000,), 3.).numpy()
        try:
            torch.empty(1 << 60, dtype=torch.uint8)
            raise AssertionError("so much memory")
        except RuntimeError as error:
            assert str(1 << 60) in str(error), error
    outside = torch.ones(100_000)
    for tensor in (large, copy, after_inner, model.weight):
        assert is_shared(tensor)
    for tensor in (small, before, outside, *others):
        assert not is_shared(tensor)
    assert (array == 3).all()
    view = large[5:].view(-1, 5)
    outside[:] = 2
    large.resize_(300_000)[100_000:] = 4
    assert (view == 1).all() and large[99_999] == 1
    for tensor in (large, copy, view, model.weight.data):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    assert (copy == 1).all()


def nothing_is_left():
    """Tensors made in a scope are freed again."""
    for _ in range(30):
        with sluice_torch.shared_memory():
            tensor = torch.ones(20_000_000)  # 80 MB
        del tensor
        gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        assert int(file.read().split()[2]) * os.sysconf("SC_PAGESIZE") < 400 << 20


def model_of(batch_of, loader=None, **options):
    """Trains it: whether each step's buckets were shared, whether they were made again after the
    first, and the losses."""
    torch.manual_seed(1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(50, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(),
                      nn.Linear(700, 10)), bucket_cap_mb=0.25, **options)
    steps = []

    def sums(_, bucket):
        steps[-1].append(is_shared(bucket.buffer()))
        buffer = bucket.buffer().div_(RANKS)
        return dist.all_reduce(buffer, async_op=True).get_future().then(
            lambda future: future.value()[0])

    model.register_comm_hook(None, sums)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for batch in loader or [batch_of(step) for step in range(STEPS)]:
        steps.append([])
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return steps, bool(model._get_ddp_logging_data().get("has_rebuilt_buckets")), losses


def batch_of(step):
    return torch.randn(16, 50, generator=torch.Generator().manual_seed(1000 * RANK + step))


def buckets():
    """The buckets from the start, and those made after the first step."""
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        steps, made_again, losses = model_of(batch_of, **options)
        assert all(map(all, steps)) and len(steps[-1]) > 1, (options, steps)
        assert made_again == ("find_unused_parameters" not in options), options
        assert losses[-1] < losses[0], losses
    assert not is_shared(torch.ones(1_000_000))


def ordinary_buckets():
    """Where ranks may not sum among themselves."""
    steps, *_ = model_of(batch_of)
    assert not any(map(any, steps)), steps


class Rows(Dataset):
    """Items of a tensor that was made before its workers were forked. They overwrite it."""

    def __init__(self):
        with sluice_torch.shared_memory():
            self.rows = torch.stack([batch_of(step) for step in range(STEPS)])
            self.scratch = torch.zeros(100_000)
        assert is_shared(self.rows) and is_shared(self.scratch)

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        assert not is_shared(self.rows)  # it is the worker's own
        self.scratch += 1
        with sluice_torch.shared_memory():
            twice = self.rows[step].repeat(2, 1)
        assert is_shared(twice)
        self.rows[step] = -1
        return twice[:len(twice) // 2].clone()


def data_loader():
    """With workers, which are forked while a model's buckets are in shared memory."""
    rows = Rows()
    loader = DataLoader(rows, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):  # the second time by other workers
        *_, losses = model_of(None, loader)
        assert losses == model_of(batch_of)[-1], losses
    assert (rows.scratch == 0).all()
    for step in range(STEPS):
        assert torch.equal(rows.rows[step], batch_of(step))
    assert is_shared(rows.rows)


def strided_and_sparse():
    """What the backend copies, it copies to memory that ranks may share."""
    tensor = torch.arange(200_000.).view(2, -1).t()[::2]
    expected = tensor.clone() * RANKS
    dist.all_reduce(tensor)
    assert torch.equal(tensor, expected)
    rows = torch.tensor([[RANK, 5]])
    sparse = torch.sparse_coo_tensor(rows, torch.ones(2, 5_000), (10, 5_000))
    dist.all_reduce(sparse)
    assert (sparse.to_dense()[5] == RANKS).all()
    assert is_shared(sparse.coalesce().values())


if __name__ == "__main__":
    group.start()
    group.run(*(globals()[name] for name in sys.argv[1:]))
