"""Every collective, compared with plain arithmetic. It prints nothing if all is right."""
import datetime
import functools
import multiprocessing
import operator
import os
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import group
import sluice_torch
from group import RANK, RANKS, of_all, of_rank, refused, same

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
BITWISE = {"BAND": operator.and_, "BOR": operator.or_, "BXOR": operator.xor}
LOGICAL = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
SHAPE = (7, 300)
LAST = RANKS - 1


def reference(op, inputs):
    dtype = inputs[0].dtype
    if dtype.is_complex:  # rounded once, like each part
        parts = reference(op, [torch.view_as_real(one) for one in inputs])
        return torch.view_as_complex(parts)
    if dtype == torch.bool:
        op = LOGICAL.get(op, op)
    if op in BITWISE:
        return functools.reduce(BITWISE[op], inputs)
    stack = torch.stack(inputs)
    if op in ("MIN", "MAX"):
        return stack.amin(0) if op == "MIN" else stack.amax(0)
    wide = stack.double()
    if op == "PRODUCT":
        return wide.prod(0).to(dtype)
    return (wide.sum(0) / (RANKS if op == "AVG" else 1)).to(dtype)


def reductions():
    """(dtype, name of the op) that there are."""
    for dtype in [*FLOATS, *INTEGERS]:
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            yield dtype, op
    for dtype in [*INTEGERS, torch.bool]:
        for op in BITWISE:
            yield dtype, op
    for op in LOGICAL:
        yield torch.bool, op
    for dtype in COMPLEX:
        yield dtype, "SUM"
        yield dtype, "AVG"


def all_reduce():
    for seed, (dtype, op) in enumerate(reductions()):
        inputs = of_all(SHAPE, dtype, seed)
        tensor = inputs[RANK].clone()
        start_all_reduce(tensor, getattr(ReduceOp, op)).wait()
        same(tensor, reference(op, inputs), op)


def start_all_reduce(tensor, op=ReduceOp.SUM):
    """As dist.all_reduce, which would convert complex numbers to real ones."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return group.default().allreduce([tensor], options)


def all_reduce_as_gloo_does():
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            mine, theirs = of_rank(RANK, SHAPE, dtype), of_rank(RANK, SHAPE, dtype)
            dist.all_reduce(mine, getattr(ReduceOp, op))
            dist.all_reduce(theirs, getattr(ReduceOp, op), group=group.gloo())
            same(mine, theirs, op)


def reduce():
    for seed, (dtype, op) in enumerate(reductions()):
        inputs = of_all((301,), dtype, seed)
        tensor = inputs[RANK].clone()
        dist.reduce(tensor, LAST, getattr(ReduceOp, op))
        same(tensor, reference(op, inputs) if RANK == LAST else inputs[RANK], op)


def reduce_scatter():
    for seed, (dtype, op) in enumerate(reductions()):
        if dtype.is_complex:  # refused by PyTorch itself
            continue
        inputs = of_all((RANKS, 301), dtype, seed)
        part = torch.empty(301, dtype=dtype)
        dist.reduce_scatter(part, [row.clone() for row in inputs[RANK]], getattr(ReduceOp, op))
        same(part, reference(op, inputs)[RANK], op)
    inputs = of_all((RANKS * 8, 5), torch.float32)
    part = torch.empty(8, 5)
    dist.reduce_scatter_tensor(part, inputs[RANK])
    same(part, reference("SUM", inputs)[8 * RANK:8 * RANK + 8])
    uneven = [torch.full((10 * r,), float(RANK)) for r in range(RANKS)]
    part = torch.empty(10 * RANK)
    dist.reduce_scatter(part, uneven)
    same(part, torch.full((10 * RANK,), float(sum(range(RANKS)))))


def broadcast():
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        tensor = of_rank(RANK, SHAPE, dtype)
        dist.broadcast(tensor, LAST)
        same(tensor, of_rank(LAST, SHAPE, dtype))


def gathers():
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        inputs = of_all(SHAPE, dtype)
        outputs = [torch.empty(SHAPE, dtype=dtype) for _ in range(RANKS)]
        dist.all_gather(outputs, inputs[RANK])
        same(torch.stack(outputs), torch.stack(inputs))
        whole = torch.empty((RANKS, *SHAPE), dtype=dtype)
        dist.all_gather(list(whole), inputs[RANK])  # in place: the parts of one tensor
        same(whole, torch.stack(inputs))
        if not dtype.is_complex:
            flat = torch.empty((RANKS * SHAPE[0], SHAPE[1]), dtype=dtype)
            dist.all_gather_into_tensor(flat, inputs[RANK])
            same(flat, torch.cat(inputs))
        outputs = [torch.empty(SHAPE, dtype=dtype) for _ in range(RANKS)] if RANK == LAST else None
        dist.gather(inputs[RANK], outputs, dst=LAST)
        if RANK == LAST:
            same(torch.stack(outputs), torch.stack(inputs))
    outputs = [torch.empty(100 * r) for r in range(RANKS)]
    dist.all_gather(outputs, torch.full((100 * RANK,), float(RANK)))
    for rank, output in enumerate(outputs):
        same(output, torch.full((100 * rank,), float(rank)))


def scatter():
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        parts = of_all(SHAPE, dtype)
        tensor = torch.empty(SHAPE, dtype=dtype)
        dist.scatter(tensor, parts if RANK == LAST else None, src=LAST)
        same(tensor, parts[RANK])


def all_to_all():
    def sent(source, target):
        return torch.full((10 * source + target, 3), 100. * source + target)

    inputs, outputs = torch.arange(4. * RANKS) + 100 * RANK, torch.empty(4 * RANKS)
    dist.all_to_all_single(outputs, inputs)
    same(outputs, torch.cat([torch.arange(4.) + 4 * RANK + 100 * r for r in range(RANKS)]))
    sizes = [[len(sent(r, RANK)) for r in range(RANKS)], [len(sent(RANK, r)) for r in range(RANKS)]]
    outputs = torch.empty(sum(sizes[0]), 3)
    dist.all_to_all_single(outputs, torch.cat([sent(RANK, r) for r in range(RANKS)]), *sizes)
    same(outputs, torch.cat([sent(r, RANK) for r in range(RANKS)]))
    parts = [torch.empty(size, 3) for size in sizes[0]]
    dist.all_to_all(parts, [sent(RANK, r) for r in range(RANKS)])
    same(torch.cat(parts), outputs)


def splits_of_either_form():
    """Ranks may give what others omit, and sizes that are equal only on one rank."""
    def exchange(sizes, explicit):
        sent, received = sizes[RANK], [row[RANK] for row in sizes]
        inputs = torch.cat([torch.full((size,), 10. * RANK + r) for r, size in enumerate(sent)])
        outputs = torch.empty(sum(received))
        dist.all_to_all_single(outputs, inputs, *((received, sent) if explicit else ()))
        same(outputs, torch.cat([torch.full((size,), 10. * r + RANK)
                                 for r, size in enumerate(received)]))

    equal = [[2] * RANKS] * RANKS
    odd = [[5 if source == target != 0 else 2 for target in range(RANKS)]
           for source in range(RANKS)]
    for implicit in range(RANKS):
        exchange(equal, explicit=RANK != implicit)
        exchange(odd, explicit=RANK != 0)


def messages():
    """A ring in both directions, sends first, whatever the strides of either side."""
    if RANKS == 1:
        return
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        inputs = of_all(SHAPE, dtype)
        sends = [dist.isend(inputs[RANK], to, tag=5) for to in (after, before)]
        for source in (before, after):
            tensor = torch.empty(SHAPE[::-1], dtype=dtype).t()
            dist.recv(tensor, source, tag=5)
            same(tensor, inputs[source])
        for work in sends:
            work.wait()
    whole = of_rank(RANK, (40, 30), torch.float32)
    received = torch.empty(40, 30)
    transposed = whole.t().contiguous().t()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, transposed, after),
                                        dist.P2POp(dist.irecv, received, before)]):
        work.wait()
    same(received, of_rank(before, (40, 30), torch.float32))
    dist.barrier()


def messages_pass_collectives():
    """Rank 0 has begun sums of several steps that the others begin after its message."""
    if RANKS == 1:
        return
    before = group.backend()._get_sequence_number_for_group()
    sparse = torch.eye(10).to_sparse()
    works = [dist.all_reduce(sparse, async_op=True)] if RANK == 0 else []
    word = torch.full((3,), float(RANK))
    for rank in range(1, RANKS):
        if RANK == 0:
            dist.send(word, rank)
        elif RANK == rank:
            dist.recv(word, 0)
            assert (word == 0).all()
    if RANK != 0:
        works.append(dist.all_reduce(sparse, async_op=True))
    works[0].wait()
    same(sparse.to_dense(), torch.eye(10) * RANKS)
    assert group.backend()._get_sequence_number_for_group() == before + 1


def coalesced():
    inputs = [of_all((10 + i, 3), torch.float32, i) for i in range(4)]
    tensors = [each[RANK].clone() for each in inputs]
    dist.all_reduce_coalesced(tensors)
    for tensor, each in zip(tensors, inputs):
        same(tensor, reference("SUM", each))
    outputs = [[torch.empty(10 + i, 3) for i in range(4)] for _ in range(RANKS)]
    dist.all_gather_coalesced(outputs, [each[RANK] for each in inputs])
    for rank, lists in enumerate(outputs):
        for output, each in zip(lists, inputs):
            same(output, each[rank])


def objects():
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * RANK})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(RANKS)]


def layouts():
    """Any layout; what lies between the elements stays."""
    expected = reference("SUM", of_all((40, 30), torch.float32))
    mine = of_rank(RANK, (40, 30), torch.float32)
    transposed = mine.t().contiguous().t()
    dist.all_reduce(transposed)
    same(transposed, expected)
    holes = torch.full((40, 60), -1.)
    holes[:, ::2] = mine
    dist.all_reduce(holes[:, ::2])
    same(holes[:, ::2], expected)
    assert (holes[:, 1::2] == -1).all()
    holes[:, ::2] = mine
    dist.broadcast(holes[:, ::2], LAST)
    same(holes[:, ::2], of_rank(LAST, (40, 30), torch.float32))
    outputs = [torch.empty(30, 40).t() for _ in range(RANKS)]
    dist.all_gather(outputs, mine.t().contiguous().t())
    same(torch.stack(outputs), torch.stack(of_all((40, 30), torch.float32)))
    dist.all_reduce(torch.empty(0))
    parameter = torch.nn.Parameter(torch.ones(4))
    dist.all_reduce(parameter.data)
    same(parameter.data, torch.full((4,), float(RANKS)))


def lazy_tensors():
    """Conjugated or negated only when read: what travels are the elements, not the memory. PyTorch
    1.13 itself gives most collectives copies of lazy outputs: here are those that get them."""
    default, to_last = group.backend(), dist.GatherOptions()
    to_last.rootRank = LAST

    def conjugated(rank):
        return of_rank(rank, (40, 30), torch.complex64).mul(1 + 2j).conj()

    def negated(rank):
        return torch._neg_view(of_rank(rank, (40, 30), torch.float32))

    def plain(tensor):
        return tensor.resolve_conj().resolve_neg().clone()

    def transposed(rank):
        return negated(rank).t()

    for lazy in conjugated, negated, transposed, lazy_holes:
        expected = [plain(lazy(rank)) for rank in range(RANKS)]
        outputs = [torch.zeros_like(one) for one in expected]
        for work in (default.allgather([outputs], [lazy(RANK)]),
                     default.alltoall(outputs, [lazy(RANK)] * RANKS),
                     default.gather([outputs] if RANK == LAST else [], [lazy(RANK)], to_last)):
            work.wait()
            same(torch.stack(outputs), torch.stack(expected))
        if lazy is not transposed:  # whose elements are gathered in the order of memory
            flat = torch.zeros((RANKS * 40, 30), dtype=expected[0].dtype)
            default._allgather_base(flat, lazy(RANK)).wait()
            same(flat, torch.cat(expected))
        tensors = [lazy(RANK), plain(lazy(RANK))]
        default.allreduce_coalesced(tensors).wait()
        for tensor in tensors:
            same(plain(tensor), sum(expected))
        output = torch._neg_view(torch.zeros(RANKS))
        default.alltoall_base(output, torch._neg_view(torch.full((RANKS,), float(RANK))), [],
                              []).wait()
        same(plain(output), -torch.arange(float(RANKS)))
    sparse = torch.sparse_coo_tensor(torch.tensor([[3, 5]]),
                                     torch._neg_view(torch.tensor([1., 2.])), (9,))
    dist.all_reduce(sparse)
    same(sparse.to_dense()[3:6], torch.tensor([-1., 0., -2.]) * RANKS)


def lazy_holes(rank):
    """The imaginary part of a conjugated tensor: negated lazily, with gaps."""
    return of_rank(rank, (40, 30), torch.complex64).mul(1 + 2j).conj().imag


def bools_of_any_byte():
    """Each value except 0 is true."""
    def bools(rank):
        return torch.tensor([2 << rank, 0, 1, 4 * (rank == 0)] * 100, dtype=torch.uint8)

    expected = {"MIN": [1, 0, 1, RANKS == 1], "MAX": [1, 0, 1, 1],
                "BXOR": [RANKS % 2, 0, RANKS % 2, 1]}
    expected |= {"PRODUCT": expected["MIN"], "BAND": expected["MIN"], "SUM": expected["MAX"],
                 "BOR": expected["MAX"]}
    for op, one in expected.items():
        tensor = bools(RANK).view(torch.bool)
        dist.all_reduce(tensor, getattr(ReduceOp, op))
        same(tensor.view(torch.uint8) != 0, torch.tensor(one * 100, dtype=torch.bool), op)
        part = torch.empty(400, dtype=torch.bool)
        dist.reduce_scatter(part, [bools(RANK).view(torch.bool)] * RANKS, getattr(ReduceOp, op))
        same(part.view(torch.uint8) != 0, torch.tensor(one * 100, dtype=torch.bool), op)


def sparse_input(rank, sizes, dense, dtype, count=40):
    generator = torch.Generator().manual_seed(rank)
    indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in sizes])
    values = torch.randint(1, 4, (count, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*sizes, *dense))


SPARSE = (  # sizes, dense sizes, rows of rank 0
    ((1000,), (8,), 40),  # rows that share blocks
    ((1000,), (64,), 40),  # a row is a block
    ((200,), (20, 30), 40),  # several blocks
    ((30, 50), (), 40),
    ((1 << 20, 1 << 20), (3,), 40),
    ((4000,), (16,), 1500),  # more rows than a slot takes: as a bitmap
    ((1 << 20, 1 << 20), (2,), 1500),  # and as numbers
)


def sparse():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.complex64):
        for sizes, dense, count in SPARSE:
            inputs = [sparse_input(r, sizes, dense, dtype, count // (r + 1)) for r in range(RANKS)]
            tensor = inputs[RANK].clone()
            work = start_all_reduce(tensor)
            after = torch.ones(10)  # behind a sum of several steps
            dist.all_reduce(after)
            same(after, torch.full((10,), float(RANKS)))
            work.wait()
            indices = torch.cat([one._indices() for one in inputs], 1)
            values = torch.cat([one._values() for one in inputs]).to(dtype)
            half = dtype == torch.float16  # which the CPU cannot coalesce
            expected = torch.sparse_coo_tensor(indices, values.float() if half else values,
                                               tensor.shape).coalesce()
            assert tensor.is_coalesced()
            same(tensor.indices(), expected.indices())
            same(tensor.values(), expected.values().to(dtype), dtype)
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 2), (9, 2))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    mine, theirs = (sparse_input(RANK, (500,), (4,), torch.float32) for _ in range(2))
    dist.all_reduce(mine)
    dist.all_reduce(theirs, group=group.gloo())
    same(mine.to_dense(), theirs.to_dense())


def works_and_futures():
    tensors = [torch.full((5000,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
    for i, tensor in enumerate(tensors):
        same(tensor, torch.full((5000,), float(RANKS * i)))
    tensor = torch.ones(3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((3,), 2. * RANKS))
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    same(work.get_future().wait()[0], tensor)
    same(work.result()[0], tensor)
    work = dist.barrier(async_op=True)
    deadline = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < deadline
    for _ in range(10):  # their memory is not reused while the library has it
        dist.all_reduce(torch.ones(100_000), async_op=True)
    dist.barrier()


def callbacks_that_wait():
    """Callbacks wait for collectives that they call, at any depth, and for others."""
    def another(depth):
        def after(done):
            if depth == 0:
                return done.value()[0]
            work = dist.all_reduce(torch.full((3,), float(depth)), async_op=True)
            return work.get_future().then(another(depth - 1)).wait()
        return after

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    same(future.then(another(20)).wait(), torch.full((3,), float(RANKS)))
    first, second = (dist.all_reduce(torch.ones(3), async_op=True).get_future() for _ in range(2))
    same(first.then(lambda _: second.wait()[0]).wait(), torch.full((3,), float(RANKS)))
    if RANKS == 1:
        return

    # Each waits for the other op of the other rank.
    def receive(_):
        word = torch.empty(3)
        dist.recv(word, 1 - RANK)
        return word

    # PyTorch runs a callback of a future that is done at once, on this thread. So rank 0's are set
    # before the others' calls let its ops end.
    gate = dist.new_group()
    if RANK != 0:
        dist.barrier(group=gate)
    first, second = (dist.all_reduce(torch.ones(3), async_op=True).get_future() for _ in range(2))
    if RANK < 2:
        received = first.then(receive)
        sent = second.then(lambda _: dist.send(torch.full((3,), 7.), 1 - RANK))
    if RANK == 0:
        dist.barrier(group=gate)
    if RANK < 2:
        sent.wait()
        same(received.wait(), torch.full((3,), 7.))


def a_time_out_beside_a_callback():
    """A callback that waits until that has come."""
    if RANKS == 1:
        return
    gate, came, hasty = dist.new_group(), threading.Event(), dist.AllreduceOptions()
    hasty.timeout = datetime.timedelta(seconds=1)
    if RANK == 0:
        held = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        released = held.then(lambda _: came.wait(60))  # not done yet: otherwise it would run here
        dist.barrier(group=gate)
        future = group.default().allreduce([torch.ones(3)], hasty).get_future()
        refused(future.wait, RuntimeError, "all_reduce ", "is not done after 1000 ms")
        dist.barrier(group=gate)
        came.set()
        assert released.wait()
    else:
        dist.barrier(group=gate)
        dist.all_reduce(torch.ones(3))
        dist.barrier(group=gate)
        dist.all_reduce(torch.ones(3))


def subgroups():
    """Each is a job of its own; the ranks of a group count from 0."""
    everyone, reversed_ranks = list(range(RANKS)), dist.new_group(list(range(RANKS)))
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=reversed_ranks)
    same(tensor, torch.full((10,), float(RANKS)))
    rest = dist.new_group(everyone[1:] or everyone)
    if RANK in (everyone[1:] or everyone):
        tensor = torch.full((10,), float(RANK))
        dist.broadcast(tensor, LAST, group=rest)
        same(tensor, torch.full((10,), float(LAST)))
    dist.destroy_process_group(reversed_ranks)
    tuned = dist.new_group(pg_options={"streams": 8, "block_elements": 64},
                           timeout=datetime.timedelta(days=200_000))
    dist.all_reduce(tensor, group=tuned)
    refused(lambda: dist.new_group(pg_options={"stream": 8}), ValueError, "'stream'", "streams")
    refused(lambda: dist.new_group(pg_options={"mtu": 1500}), ValueError, "SLUICE_MTU", "process")
    refused(lambda: dist.new_group(pg_options={"streams": "many"}), ValueError, "many")


def one_store_for_several_groups():
    """One after the other, as with torchrun's, which outlives them."""
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    options.group_rank, options.group_size = RANK, RANKS
    options.timeout = datetime.timedelta(seconds=60)
    for _ in range(2):
        again = sluice_torch.ProcessGroupSluice(options, {})
        again.barrier().wait()


def bad_arguments():
    good = torch.ones(10)
    ours = group.backend()
    refused(lambda: dist.all_reduce(good.bool(), ReduceOp.AVG), ValueError, "AVG of bool")
    refused(lambda: dist.all_reduce(good, ReduceOp.BOR), ValueError, "BOR of float32", "integers")
    quantized = torch.quantize_per_tensor(good, 1., 0, torch.qint8)
    for odd, told in ((quantized, "QInt8 [10], whose scale does not travel; its int_repr() or"),
                      (good.view(2, 5).to_sparse_csr(), "float32 [2, 5] of layout SparseCsr; a"),
                      (good.to_mkldnn(), "float32 [10] of layout Mkldnn; a dense one")):
        for name, call in (("all_reduce", lambda odd: ours.allreduce([odd])),
                           ("broadcast", lambda odd: ours.broadcast(odd, 0)),
                           ("reduce", lambda odd: ours.reduce(odd, 0)),
                           ("all_gather", lambda odd: ours.allgather([[odd] * RANKS], [odd])),
                           ("scatter", lambda odd: ours.scatter(odd, [odd] * RANKS, 0)),
                           ("all_to_all", lambda odd: ours.alltoall([odd] * RANKS,
                                                                       [odd] * RANKS)),
                           ("all_to_all_single", lambda odd: ours.alltoall_base(odd, odd, [],
                                                                                   [])),
                           ("reduce_scatter_tensor",
                            lambda odd: ours._reduce_scatter_base(odd, odd)),
                           ("send", lambda odd: ours.send([odd], (RANK + 1) % RANKS, 0))):
            refused(lambda: call(odd), ValueError, f"sluice: {name}: a tensor is {told}")
    refused(lambda: dist.all_reduce(torch.tensor(3.).to_sparse()), ValueError,
            "sluice: sparse all_reduce: float32 [] sparse has no sparse dimension; 1 or more")
    refused(lambda: ours.allreduce([good, good]), ValueError, "2 tensors; 1 expected")
    refused(lambda: dist.all_reduce(good.int(), dist._make_nccl_premul_sum(2.)), ValueError,
            "PREMUL_SUM of int32; floats expected")
    refused(lambda: ours.broadcast(good, RANKS), ValueError, f"root {RANKS}; 0 to {LAST}")
    refused(lambda: dist.all_gather([good] * (RANKS + 1), good), ValueError, f"{RANKS + 1} tensors")
    refused(lambda: dist.all_gather_into_tensor(good, good[:3]), ValueError, "with 10 elements",
            f"{3 * RANKS} expected")
    refused(lambda: ours.allgather([[good.double()] * RANKS], [good]), ValueError, "float64",
            "equal dtypes")
    refused(lambda: ours.broadcast(good.to_sparse(), 0), ValueError, "sparse", "dense")
    refused(lambda: dist.reduce_scatter(torch.empty(9), [good] * RANKS), ValueError, "9 elements")
    refused(lambda: dist.all_to_all_single(torch.empty(10 * RANKS), torch.empty(10 * RANKS),
                                           [10] * RANKS, [9] * RANKS), ValueError, "split sizes")
    refused(lambda: ours.send([good], RANK, 0), ValueError, f"send: rank {RANK} is this rank")
    refused(lambda: ours.recv([good], RANKS, 0), ValueError, f"recv: rank {RANKS}; 0 to {LAST}")
    refused(lambda: dist.recv(good), ValueError, "recv: a message of whichever rank comes first")
    if RANKS > 1:
        other = (RANK + 1) % RANKS
        refused(lambda: dist.send(good, other, tag=-1), ValueError, "send: tag -1; 0 or more")
        refused(lambda: ours.send([good.to_sparse()], other, 0), ValueError, "sparse", "dense")
    try:
        dist.new_group(pg_options="streams=8")
    except TypeError as error:
        assert "a dict" in str(error)
    else:
        raise AssertionError("pg_options may be a text")
    dist.all_reduce(good)


def sizes_of_all_to_all_differ():
    """All ranks see it, and the group goes on."""
    if RANKS == 1:
        return
    sent, received = [2] * RANKS, [2] * RANKS
    received[0] += RANK == LAST
    call = functools.partial(dist.all_to_all_single, torch.empty(sum(received)),
                             torch.empty(sum(sent)), received, sent)
    refused(call, RuntimeError, "rank 0 sends 2 elements", f"rank {LAST}, which expects 3")
    dist.barrier()


def sequence_numbers():
    default = group.default()
    ours = group.backend()  # PyTorch 2 calls it only for Gloo and NCCL
    before = ours._get_sequence_number_for_group()
    dist.barrier()
    assert ours._get_sequence_number_for_group() == before + 1
    default.monitored_barrier(datetime.timedelta(seconds=60), True)


def in_a_child(work, tensor):
    refused(lambda: dist.all_reduce(tensor), RuntimeError, "forked")
    if RANKS > 1:
        refused(work.wait, RuntimeError, "forked")
        assert not work.is_completed()
        refused(work.get_future().wait, RuntimeError, "forked")


def forked_children():
    """While rank 0's op waits for the others, which wait for its message."""
    word = dist.new_group()
    tensor = torch.ones(10)
    if RANK != 0:
        dist.barrier(group=word)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()  # starts a thread
    if RANK == 0:
        child = multiprocessing.get_context("fork").Process(target=in_a_child, args=(work, tensor))
        child.start()
        child.join()
        assert child.exitcode == 0
        dist.barrier(group=word)
    same(future.wait()[0], torch.full((10,), float(RANKS)))


if __name__ == "__main__":
    group.start()
    group.run(all_reduce, all_reduce_as_gloo_does, reduce, reduce_scatter, broadcast, gathers,
              scatter, all_to_all, splits_of_either_form, messages, messages_pass_collectives,
              coalesced, objects, layouts, lazy_tensors, bools_of_any_byte, sparse,
              works_and_futures, callbacks_that_wait, a_time_out_beside_a_callback, subgroups,
              one_store_for_several_groups, bad_arguments, sizes_of_all_to_all_differ,
              sequence_numbers,
              *([] if "FAKE_DELAY_US" in os.environ else [forked_children]))  # no device there
