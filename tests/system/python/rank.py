"""One rank of a job in Python: `rank.py SCENARIO`. It prints nothing if all is right, except what
the test waits for."""
import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import types
import weakref

import numpy as np
import sluice

RANK, RANKS = int(os.environ["SLUICE_RANK"]), int(os.environ["SLUICE_WORLD_SIZE"])


def refused(call, kind, *parts):
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def types_and_reductions(job):
    factorial = int(np.prod(range(1, RANKS + 1)))
    for dtype in ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64"):
        for reduction, expected in (("sum", sum(range(1, RANKS + 1))), ("min", 1), ("max", RANKS),
                                    ("prod", factorial)):
            array = np.full((10, 30), RANK + 1, dtype)
            assert job.all_reduce(array, reduction=reduction).wait() is array
            assert array.dtype == dtype and (array == expected).all(), (dtype, reduction, array)
    bits = np.full(1000, 0x3f80, np.uint16)  # 1.0
    job.all_reduce(bits, element_type="bfloat16", reduction="avg").wait()
    assert (bits == 0x3f80).all()
    flags = np.arange(RANKS) == RANK
    job.all_reduce(flags, reduction="bor").wait()
    assert flags.dtype == bool and flags.all()


def moves(job):
    array = np.full((3, 5), RANK, ">f8")  # any dtype: bits are moved
    assert job.broadcast(array, RANKS - 1).wait() is array
    assert (array == RANKS - 1).all()
    pairs = np.array([RANK + 1j], np.complex64)
    gathered = job.all_gather(pairs).wait()
    assert gathered.shape == (RANKS, 1) and (gathered[:, 0] == np.arange(RANKS) + 1j).all()
    counts = [1000 * r for r in range(RANKS)]
    flat = job.all_gather(np.full(counts[RANK], RANK, np.float32), counts=counts).wait()
    assert (flat == np.repeat(np.arange(RANKS), counts)).all()
    whole = np.zeros((RANKS, 7), np.uint8)
    whole[RANK] = RANK + 1
    job.all_gather(whole[RANK], whole).wait()
    assert (whole == np.arange(1, RANKS + 1)[:, None]).all()
    refused(lambda: job.broadcast(array, RANKS), ValueError, f"root {RANKS}", "broadcast")
    refused(lambda: job.broadcast(np.zeros(2, complex)), ValueError, "complex128")
    refused(lambda: job.broadcast(np.zeros(2, object)), ValueError, "object")
    refused(lambda: job.all_gather(pairs, counts=[1] * (RANKS + 1)), ValueError, "counts")
    refused(lambda: job.all_gather(pairs, counts=[1] * (RANKS - 1) + [-1]), ValueError, "-1")
    refused(lambda: job.broadcast(array, tag=-1), ValueError, "tag -1")
    refused(lambda: job.broadcast(array, root=2**16), ValueError, "root 65536")
    refused(lambda: job.broadcast(array, root=0.0), TypeError, "root = 0.0")
    refused(lambda: job.all_gather(pairs, np.zeros(RANKS)), ValueError, "complex64 expected")


def dtypes_that_differ():
    """Bits are moved only between equal dtypes."""
    calls = [lambda job, array: job.broadcast(array), lambda job, array: job.all_gather(array),
             lambda job, array: job.gather(array), lambda job, array: job.all_to_all(array),
             lambda job, array: job.scatter(np.tile(array, RANKS), array)]
    pairs = [("f8", "i8", "has element type ", "double", "int64"),
             (">f8", "<f8", "has another dtype", "has dtype >f8"),
             ("<f4", ">f4", "has another dtype", "has dtype >f4"), ("?", "u1", "element type "),
             ("M8[s]", "M8[ms]", "has dtype ", "<M8[s]", "<M8[ms]"),
             ("u8", "c8", "has dtype ", "<c8", "<u8"), (">u2", "u2", "has dtype ", ">u2", "<u2")]
    with sluice.Context() as context:
        for number, (dtype, other, *told) in enumerate(pairs):
            with context.join(job=100 + number) as job:
                array = np.zeros(2 * RANKS, dtype if RANK == 0 else other)
                refused(lambda: calls[number % len(calls)](job, array).wait(), sluice.Error,
                        "different collectives", *told)
        with context.join() as job:
            array = np.zeros(3, "<f8" if RANK == 0 else ">f8")
            refused(lambda: (job.send(array, 1) if RANK == 0 else job.recv(array, 0)).wait(),
                    sluice.Error, "has dtype >f8")


def bools_of_any_byte(job):
    """Each value except 0 is true."""
    def bools():
        return np.array([2 << RANK, 0, 1, 4 * (RANK == 0)], np.uint8).view(bool)

    for reduction, expected in (("min", [1, 0, 1, RANKS == 1]), ("band", [1, 0, 1, RANKS == 1]),
                                ("max", [1, 0, 1, 1]), ("bor", [1, 0, 1, 1])):
        found = job.all_reduce(bools(), reduction=reduction).wait().view(np.uint8)
        assert ((found != 0) == np.array(expected, bool)).all(), (reduction, found)
    refused(lambda: job.all_reduce(bools(), reduction="bxor"), ValueError, "0 and 1 expected")


def parts(job):
    root, ranks = RANKS - 1, np.arange(RANKS)
    array = np.tile(np.arange(12, dtype=np.float32), (RANKS, 1)) * (RANK + 1)
    before, sums = array.copy(), np.arange(12) * sum(range(1, RANKS + 1))
    reduced = job.reduce(array, root, np.empty_like(array)).wait()
    assert (reduced == sums).all() if RANK == root else reduced is None
    part = job.reduce_scatter(array).wait()
    assert part.shape == (1, 12) and (part == sums).all() and (array == before).all()
    counts = [12 * RANKS] + [0] * (RANKS - 1)
    part = job.reduce_scatter(array, counts=counts, reduction="max").wait()
    assert part.size == counts[RANK] and (part == np.tile(np.arange(12) * RANKS, RANKS)
                                          [:part.size]).all()

    gathered = job.gather(np.full(3, RANK, ">i2"), root).wait()
    assert gathered is None if RANK != root else (gathered == ranks[:, None]).all()
    own = np.full(RANK, RANK, np.complex64)
    gathered = job.gather(own, root, counts=ranks).wait()
    assert gathered is None if RANK != root else (gathered == np.repeat(ranks, ranks)).all()
    output = np.zeros(RANK, np.complex64)
    assert job.scatter(gathered, output, root, counts=ranks).wait() is output
    assert (output == RANK).all()
    if RANK == root:
        job.reduce(array, root).wait()
        assert (array == sums).all()
    else:
        job.reduce(array, root).wait()
        assert (array == before).all()

    exchanged = job.all_to_all(np.repeat(10 * RANK + ranks, 2).reshape(RANKS, 2)).wait()
    assert (exchanged == (10 * ranks + RANK)[:, None]).all()
    pairs = np.array([[a + b for b in ranks] for a in ranks])  # elements from a to b
    exchanged = job.all_to_all(np.repeat(ranks, pairs[RANK]).astype("f4"), counts=pairs).wait()
    assert (exchanged == RANK).all() and exchanged.size == pairs[:, RANK].sum()

    odd = np.zeros(RANKS + 1, np.float32)
    if RANKS > 1:
        refused(lambda: job.reduce_scatter(odd), ValueError, f"world_size = {RANKS} divides")
        refused(lambda: job.all_to_all(odd), ValueError, "all_to_all", "divides")
    refused(lambda: job.reduce_scatter(odd, counts=[1] * RANKS), ValueError, f"{RANKS} elements")
    refused(lambda: job.reduce_scatter(odd, counts=[0.5] * RANKS), ValueError, "integers")
    refused(lambda: job.all_to_all(odd, counts=[1] * RANKS), ValueError, f"{RANKS} x {RANKS}")
    refused(lambda: job.gather(odd, counts=[1] * RANKS), ValueError, "counts has 1 for rank")
    refused(lambda: job.gather(odd, RANKS), ValueError, f"gather: root {RANKS}")
    refused(lambda: job.scatter(None, odd, RANK), ValueError, "array is None; float32")
    refused(lambda: job.scatter(odd, odd, RANK, counts=[odd.size] * (RANKS + 1)), ValueError)
    refused(lambda: job.reduce(odd, reduction="mean"), ValueError, "reduce: reduction 'mean'")


def messages(job):
    """A ring in both directions, sends first; any dtype."""
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    own = np.full((2, 700), RANK + 1j, np.complex64)
    if RANKS > 1:
        own.flags.writeable = False
        sent = [job.send(own, to, tag=to) for to in (after, before)]
        for source in (before, after):
            received = np.zeros_like(own)
            assert job.recv(received, source, tag=RANK).wait() is received
            assert (received == source + 1j).all()
        assert all(work.wait() is own for work in sent)
        read_only = own
        refused(lambda: job.recv(read_only, after), ValueError, "recv: array is read-only")
    refused(lambda: job.send(own, RANK), ValueError, f"send: rank {RANK}; another than this rank")
    refused(lambda: job.send(own, RANKS), ValueError, f"send: to {RANKS}; 0..{RANKS - 1} expected")
    refused(lambda: job.recv(own, -1), ValueError, "recv: source -1")
    refused(lambda: job.send(own, 0.5), TypeError, "to = 0.5")
    refused(lambda: job.send(np.zeros(2, object), 0), ValueError, "send: dtype object")
    refused(lambda: job.send(own[:, ::2], 0), ValueError, "contiguous")


def apart_and_sparse(job, block=0):
    array = np.zeros((RANKS, 1000), np.float32)
    array[RANK] = RANK + 1
    output = np.full_like(array, np.nan)
    before = array.copy()
    begins = range(0, array.size, job.block_elements("f4", block))
    blocks = np.add.reduceat(array.ravel() != 0, begins) > 0
    work = job.all_reduce(array, output, nonzero_blocks=blocks, block_elements=block)
    assert work.wait() is output and work.done()
    assert (array == before).all()
    assert (output == np.arange(1, RANKS + 1)[:, None]).all()
    cost = work.statistics
    assert cost.blocks == blocks.size and cost.blocks_sent == blocks.sum() and cost.bytes_sent > 0


def blocks_of_the_op(job):
    apart_and_sparse(job, 100)
    work = job.all_reduce(np.ones(1000), block_elements=10)
    work.wait()
    assert work.statistics.blocks == 100
    refused(lambda: job.block_elements("f4", -1), ValueError, "block_elements -1; 0..16384")
    refused(lambda: job.all_reduce(np.ones(1), block_elements=16385), ValueError, "16385")
    refused(lambda: job.reduce(np.ones(1), block_elements=0.5), TypeError, "block_elements = 0.5")


def sums_of_few_bits(job):
    mine = np.linspace(-1, 1, 1000, dtype=np.float32) * (1 + RANK)
    exact = np.linspace(-1, 1, 1000) * sum(range(1, RANKS + 1))
    for encoding, seed, share in (("float16", 0, 2**-11), ("bfloat16", 0, 2**-8),
                                  ("int8", 0, 1 / 127), ("int8", 9, 2 / 127),
                                  ("int4", 0, 1 / 7), ("int4", 9, 2 / 7)):
        got = np.zeros_like(mine)
        job.all_reduce(mine, got, encoding=encoding, rounding_seed=seed).wait()
        off = abs(got - exact).max()
        assert 0 < off <= 2 * share * abs(exact).max(), (encoding, seed)
    refused(lambda: job.all_reduce(mine, encoding="float16", rounding_seed=9), ValueError,
            "rounds to nearest")
    refused(lambda: job.all_reduce(mine, encoding="int2"), ValueError, "encoding 'int2'")
    refused(lambda: job.all_reduce(np.ones(3), encoding="int8"), ValueError, "int8")
    refused(lambda: job.reduce(mine, rounding_seed=-1), ValueError, "rounding_seed -1; 0..2^64-1")


def child_writes(array, lock):
    with lock:
        assert (array == 1).all()
        array[:] = 2


def memory_of_the_library(job):
    """Arrays of sluice.empty and sluice.zeros."""
    array = sluice.zeros((3, 100), np.float32)
    assert array.shape == (3, 100) and array.dtype == np.float32 and not array.any()
    assert array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % 64 == 0
    array[:] = RANK + 1
    view = job.all_reduce(array).wait()[1:, ::2]
    assert (view == sum(range(1, RANKS + 1))).all()
    pairs = sluice.empty([2], "c8")
    pairs[:] = RANK
    assert (job.broadcast(pairs).wait() == 0).all()
    for shape in (0, (0, 5), ()):
        assert sluice.zeros(shape).shape == np.zeros(shape).shape
    assert sluice.empty(3).dtype == np.float64
    used = sluice.empty(1 << 20, np.uint8)
    used[:] = 7
    del used  # the next array may use its memory
    assert not sluice.zeros(1 << 20, np.uint8).any()

    refused(lambda: sluice.empty((2, -1)), ValueError, "empty", "(2, -1)")
    refused(lambda: sluice.zeros(2.5), TypeError, "shape = 2.5")
    refused(lambda: sluice.empty(2, object), ValueError, "object")
    refused(lambda: sluice.empty(1 << 62, np.uint8), MemoryError, str(1 << 62))
    refused(lambda: sluice.empty((1 << 40, 1 << 40)), MemoryError, str(1 << 83))


def memory_goes_with_its_last_view():
    """Its pages, except those that are kept for the next array."""
    def held():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[2]) * os.sysconf("SC_PAGESIZE")  # shared with files
    size = 256 << 20
    array = sluice.zeros(size, np.uint8)
    begin = held()
    view = array[::2][5:].reshape(-1, 3)[:, 1:]
    del array
    gc.collect()
    assert held() >= begin - (1 << 20) and not view.any()
    del view
    gc.collect()
    assert held() <= begin - size + (80 << 20), (begin, held())


def memory_is_private_after_fork():
    fork = multiprocessing.get_context("fork")
    array = sluice.empty(100_000, np.int32)
    array[:] = 1
    lock = fork.Lock()
    children = [fork.Process(target=child_writes, args=(array, lock)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert (array == 1).all()


def metrics_change_no_signals():
    """A forked child, which has none of their threads, does not wait for these either."""
    def ignored_signals():
        with open("/proc/self/status", encoding="ascii") as file:
            return next(line for line in file if line.startswith("SigIgn"))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    before = ignored_signals()
    with sluice.Context(metrics_listen="0") as context:
        assert ignored_signals() == before
        child = multiprocessing.get_context("fork").Process(target=context.close)
        child.start()
        child.join()
        assert child.exitcode == 0
    assert ignored_signals() == before


def compressed_blocks():
    """Three blocks of 4, 4 and 2 elements. Without any Context."""
    gradients = np.array([1, 1, 1, 1, 4, 4, 4, 4, 2, 2], np.float32)
    residual, out = np.zeros(10, np.float32), np.empty((2, 5), np.float32)
    sent = sluice.compress.top_k(gradients, 1, residual=residual, out=out, block_elements=4,
                                 divisor=2)
    assert sent.tolist() == [False, True, False]
    assert out.flatten().tolist() == [0, 0, 0, 0, 2, 2, 2, 2, 0, 0]
    assert residual.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 2, 2] and gradients[0] == 1
    gradients.flags.writeable = False
    parameters = np.array([1] * 8 + [8, 8], np.float32)
    sent = sluice.compress.top_k_ratio(gradients, parameters, 2, out=out, block_elements=4)
    assert sent.tolist() == [True, True, False]
    gradients = np.ones(100 * 256 + 1, np.float32)
    left = gradients.copy()
    sent = sluice.compress.random_k(gradients, 50, seed=3, step=2**64 - 1, residual=left)
    assert sent.sum() == 50 and (gradients.sum() + left.sum() == 2 * gradients.size)
    assert (sent == sluice.compress.random_k(left.copy() + 1, 50, seed=3, step=2**64 - 1)).all()
    assert not sluice.compress.threshold(np.ones(100, np.float32), 10).any()
    assert sluice.compress.threshold(np.ones(101, np.float32), 10).all()
    assert sluice.compress.threshold(np.empty(0, np.float32), 10).shape == (0,)


def compressed_elements():
    gradients = np.array([1, -5, 0, 3, 5, 0], np.float32)
    residual = np.array([0, 0, 0, -7, 0, 0], np.float32)
    top_k = sluice.compress.ElementTopK(2)
    keys, values = top_k.compress(gradients, residual=residual)
    assert (keys.dtype, values.dtype) == (np.uint32, np.float32)
    assert (keys.tolist(), values.tolist()) == ([1, 4], [-5, 5])
    assert residual.tolist() == [1, 0, 0, -4, 0, 0]
    top_k.set_k(0)
    assert [part.tolist() for part in top_k.compress(gradients)] == [[], []]
    keys, values = sluice.compress.elements(gradients, 3)
    assert (keys.tolist(), values.tolist()) == ([1, 3, 4], [-5, 3, 5])
    keys, _ = sluice.compress.ElementTopK(1, bucket_elements=3, exact_every=2).compress(gradients)
    assert keys.tolist() == [1, 4]
    assert sluice.compress.k_for_union(8, 100, 10, 500) == 8
    assert sluice.compress.k_for_union(8, 100, 10, 500, own=20, in_union=20) == 50


def compressors_refuse():
    floats, wrong = np.ones(10, np.float32), sluice.InvalidArgument
    compress = sluice.compress
    refused(lambda: compress.top_k([1.0], 1), TypeError, "top_k", "numpy.ndarray")
    refused(lambda: compress.top_k(floats.astype(float), 1), wrong, "float32")
    refused(lambda: compress.top_k(floats[::2], 1), wrong, "not contiguous")
    refused(lambda: compress.top_k(floats, -1), wrong, "k -1")
    refused(lambda: compress.top_k(floats, 1.5), TypeError, "an integer")
    refused(lambda: compress.top_k(floats, 1, residual=floats), wrong, "overlap")
    refused(lambda: compress.top_k(floats, 1, residual=floats[1:]), wrong, "10 elements")
    refused(lambda: compress.top_k(floats, 1, out=floats[1:]), wrong, "out is", "10 elements")
    refused(lambda: compress.top_k(floats, 1, block_elements=0), wrong, "block_elements 0")
    refused(lambda: compress.top_k(floats, 1, divisor=0), wrong, "divisor")
    refused(lambda: compress.threshold(floats, float("nan")), wrong, "norm")
    refused(lambda: compress.top_k_ratio(floats, floats[1:], 1), wrong, "parameters is")
    refused(lambda: compress.elements(floats, -1), wrong, "magnitude")
    refused(lambda: compress.elements(floats, 1, residual=floats[1:]), wrong, "10 elements")
    refused(lambda: compress.ElementTopK(1, exact_every=0), wrong, "exact_every")
    refused(lambda: compress.k_for_union(0, 1, 1, 1), wrong, "ranks")
    floats.flags.writeable = False
    refused(lambda: compress.top_k(floats, 1), wrong, "read-only")
    assert (floats == 1).all()


def compressed():
    compressed_blocks()
    compressed_elements()
    compressors_refuse()


def compressed_and_summed(job):
    """The blocks that a rank sends, by its bitmap."""
    gradients = np.full(64 * 100, RANK + 1, np.float32)
    sent = sluice.compress.random_k(gradients, 10, seed=1, step=2, block_elements=64)
    work = job.all_reduce(gradients, nonzero_blocks=sent, block_elements=64)
    work.wait()
    assert work.statistics.blocks_sent == 10
    assert (gradients.reshape(100, 64)[sent] == sum(range(1, RANKS + 1))).all()
    assert not gradients.reshape(100, 64)[~sent].any()


def largest_of_the_sum(job):
    """Each rank has one element of its own, and one that all have. Nothing is lost in any step."""
    rng = np.random.default_rng(RANK)
    given, delivered, residual = (np.zeros(1000, np.float32) for _ in range(3))
    top_k = sluice.GlobalTopK(20, tag=5)
    thresholds = []
    for _ in range(10):
        gradients = rng.integers(-50, 50, 1000).astype(np.float32)
        given += gradients
        count = top_k.all_reduce(job, gradients, residual=residual)
        assert np.count_nonzero(gradients) <= count <= 20 * RANKS
        delivered += gradients
        thresholds.append(top_k.threshold)
    assert (job.all_reduce(given).wait() == delivered + job.all_reduce(residual).wait()).all()
    assert (job.all_gather(np.array(thresholds)).wait() == thresholds).all()
    assert RANKS == 1 or thresholds[-1] > 0
    top_k.forget()
    top_k.set_k(1000)
    assert top_k.threshold == 0
    work = top_k.start(job, np.full(1000, RANK + 1, np.float32))
    refused(top_k.forget, sluice.InvalidArgument, "under way")
    refused(lambda: top_k.finish(residual[1:]), ValueError, "999 elements, 1000 expected")
    assert work.wait() is None and top_k.finish(residual) == 1000
    assert (residual == sum(range(1, RANKS + 1))).all()
    refused(lambda: top_k.finish(residual), ValueError, "no step")
    refused(lambda: top_k.all_reduce(job, residual, out=residual[1:]), ValueError, "out is")
    refused(lambda: top_k.all_reduce(job, residual, residual=residual[1:]), ValueError, "1000 el")
    refused(lambda: sluice.GlobalTopK(1, reduction="max"), ValueError, "sum or average")
    refused(lambda: sluice.GlobalTopK(1, reduction="none"), ValueError, "'sum' or 'avg'")
    refused(lambda: sluice.GlobalTopK(-1), ValueError, "k -1")
    small = sluice.GlobalTopK(10, result_bytes=12)
    kept = np.zeros(1000, np.float32)
    gradients = np.ones(1000, np.float32)
    refused(lambda: small.all_reduce(job, gradients, residual=kept), sluice.Error, "12 bytes")
    assert (kept == 1).all() and (gradients == 1).all()


def no_elements(job):
    job.all_reduce(np.zeros((0, 4), np.float32)).wait()
    scalar = np.array(RANK + 1, np.int64)
    job.all_reduce(scalar, reduction="max").wait()
    assert scalar == RANKS


def arrays_outlive_their_names(job):
    works = []
    for i in range(200):
        works.append(job.all_reduce(np.full(5000, i, np.float32)))
        job.all_reduce(np.full(5000, 1, np.float32))  # neither the work nor its array is kept
    for i, work in enumerate(works):
        assert (work.wait() == i * RANKS).all()
    job.barrier().wait()


def bad_arguments(job):
    def reduce(*arguments, **named):
        return lambda: job.all_reduce(*arguments, **named)

    good = np.zeros(100, np.float32)
    refused(reduce([1.0]), TypeError, "array is a list")
    refused(reduce(good[::2]), ValueError, "array is not contiguous", "(8,)")
    refused(reduce(np.zeros((4, 5), "f4").T), ValueError, "contiguous")
    refused(reduce(np.zeros(3, np.uint32)), ValueError, "uint32", "float32")
    refused(reduce(np.zeros(3, bool)), ValueError, "bool")
    refused(reduce(good, reduction="bor"), ValueError, "bor is one of integers")
    refused(reduce(np.zeros(3, ">f4")), ValueError, ">f4", "order")
    refused(reduce(good, np.zeros(99, "f4")), ValueError, "(99,)", "(100,)")
    refused(reduce(good, np.zeros(100)), ValueError, "float64")
    refused(reduce(good[:50], good[25:75]), sluice.InvalidArgument, "overlap")
    refused(reduce(good, reduction="product"), ValueError, "'product'", "'prod'")
    refused(reduce(good, element_type="bfloat16"), ValueError, "float32 with element_type")
    refused(reduce(good, nonzero_blocks=np.ones(1)), ValueError, "nonzero_blocks is float64")
    refused(reduce(good, nonzero_blocks=np.ones(2, bool)), ValueError, "(2,)", "array's 1 blocks")
    refused(reduce(good, nonzero_blocks=np.ones(0, bool)), ValueError, "(0,)")
    refused(reduce(good, nonzero_blocks=[True]), TypeError, "list")
    refused(reduce(good, tag=2**64), ValueError, "tag 18446744073709551616")
    refused(reduce(good, tag=0.5), TypeError, "tag = 0.5")
    read_only = good.copy()
    read_only.flags.writeable = False
    refused(reduce(read_only), ValueError, "read-only")
    error = refused(lambda: job._context.join(rank=RANKS), ValueError, "rank")
    assert error.status is sluice.Status.INVALID_ARGUMENT
    refused(lambda: sluice.Context(mtu=5), ValueError, "mtu must be")
    refused(lambda: sluice.Context(mtus=5), ValueError, "did you mean 'mtu'")
    refused(lambda: sluice.Context(port=None), TypeError, "port = None")
    refused(lambda: sluice.Context(secret=b"x"), TypeError, "secret")
    refused(lambda: sluice.Context(secret="x\0y"), ValueError, "secret has a zero byte")
    refused(lambda: job._context.join(mtu=9000), ValueError, "mtu is a setting of the Context")
    refused(job._context.close, ValueError, "1 of its communicators")


def splits(job):
    """Rank 0 joins no part; the others are in reverse in theirs, which outlives its parent."""
    with job.duplicate() as twin:
        assert (twin.rank, twin.world_size) == (RANK, RANKS) and twin.job_id != job.job_id
        part = twin.split(None if RANK == 0 else 5, -RANK)
    assert (part is None) == (RANK == 0)
    if part:
        with part:
            assert (part.rank, part.world_size) == (RANKS - 1 - RANK, RANKS - 1)
            ranks = part.all_gather(np.array([RANK])).wait().ravel()
            assert (ranks == np.arange(1, RANKS)[::-1]).all()
    with job.split(np.int64(RANK)) as alone:
        assert alone.world_size == 1
    assert job.split(-2) is None
    refused(lambda: job.split(0.5), TypeError, "split: an integer expected, not color = 0.5")
    refused(lambda: job.split(1 << 31), ValueError, "color 2147483648; -2^31..2^31-1 expected")
    refused(lambda: job.split(0, "x"), TypeError, "key = 'x'")
    with job._context.join(job="bert-large") as named:
        assert named.job_id == 108174750


def arrays_are_let_go(parent):
    """Each ends when its own op is done, whatever else is under way."""
    def start_and_forget(size):
        array = np.ones(size, np.float32)
        job.all_reduce(array).wait()
        return weakref.ref(array)

    with parent._context.join(job=2) as job:
        received = np.zeros(3, np.float32)
        pending = job.recv(received, 1) if RANK == 0 and RANKS > 1 else None
        forgotten = [start_and_forget(1000) for _ in range(20)]
        job.barrier().wait()
        assert sum(array() is not None for array in forgotten) == 0
        if RANK == 1:
            job.send(np.ones(3, np.float32), 0).wait()
        if pending:
            assert (pending.wait() == 1).all()
        job.barrier().wait()


def interrupted_calls(job):
    """Ctrl-C before the library is called: the op never begins, and its array is released."""
    array = np.ones(5, np.float32)
    unbegun = weakref.ref(array)
    with replaced(sluice, "call", interrupt):
        refused(lambda: job.all_reduce(array), KeyboardInterrupt)
    del array
    job.barrier().wait()
    assert unbegun() is None


def interrupt(*_):
    raise KeyboardInterrupt


@contextlib.contextmanager
def replaced(module, name, function):
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield before
    finally:
        setattr(module, name, before)


def closing_waits_for_calls(context):
    """An object that one thread closes stays until another thread, which is about to call the
    library, has done so."""
    job = context.join(job=3)
    calling, closed, ended = threading.Event(), threading.Event(), []

    def slow(function, *arguments):
        if function is sluice.lib.sluice_barrier:
            calling.set()
            ended.append(closed.wait(0.3))  # must not end
        return call(function, *arguments)

    with replaced(sluice, "call", slow) as call:
        caller = threading.Thread(target=job.barrier)
        caller.start()
        calling.wait()
        job.close()
        closed.set()
        caller.join()
    assert ended == [False], "closed beside a call"


def closing_waits_for_joining(context):
    """A Context stays open while a thread is about to join."""
    joining, go_on = threading.Event(), threading.Event()

    def slow(function, *arguments):
        if function is sluice.lib.sluice_communicator_join:
            joining.set()
            go_on.wait()
        return call(function, *arguments)

    def join():
        with context.join(job=3) as job:
            job.barrier().wait()

    with replaced(sluice._library, "call", slow) as call:
        joiner = threading.Thread(target=join)
        joiner.start()
        joining.wait()
        refused(context.close, ValueError, "1 of its communicators")
        go_on.set()
        joiner.join()


def by_four_threads(call):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(call) for _ in range(4)]:
            done.result()


def closed_beside_calls():
    context = sluice.Context()
    closing_waits_for_joining(context)
    closing_waits_for_calls(context)
    by_four_threads(context.close)
    refused(context.join, ValueError, "closed")


def contexts_are_shared():
    """All contexts of a process share the ports, until the last one is closed."""
    first = sluice.Context()
    with sluice.Context() as second, second.join() as job:
        first.close()
        refused(first.join, ValueError, "closed")
        job.barrier().wait()
        refused(lambda: sluice.Context(mtu=1400), ValueError, "mtu", "1400", "open")
        with sluice.Context(aggregators=os.environ["SLUICE_AGGREGATORS"]) as same:
            with same.join(job=3) as other:
                other.barrier().wait()
    with sluice.Context(mtu=1400) as again, again.join(job=4) as job:
        job.barrier().wait()
    by_four_threads(open_and_close)
    with sluice.Context() as context, context.join(job=5) as job:
        job.barrier().wait()


def timeline():
    """Writes the file of the setting SLUICE_TIMELINE; the test reads it."""
    with sluice.Context() as context, context.join() as job:
        refused(lambda: context.start_timeline("other"), ValueError, "timeline already")
        job.all_reduce(np.ones(1000, np.float32), tag=9).wait()
        if RANK == 0:
            job.send(np.zeros(3, np.int8), 1).wait()
        elif RANK == 1:
            job.recv(np.zeros(3, np.int8), 0).wait()
        job.barrier().wait()
        context.stop_timeline()
        refused(context.stop_timeline, ValueError, "no timeline")
        job.barrier().wait()
        context.start_timeline(os.environ["SLUICE_TIMELINE"] + ".again")
        job.broadcast(np.zeros(4)).wait()
        refused(lambda: sluice.Context(timeline="other.json"), ValueError,
                "SLUICE_TIMELINE", "other.json", os.environ["SLUICE_TIMELINE"])


def timeline_of_a_full_disk():
    with sluice.Context() as context, context.join() as job:
        for _ in range(50):
            job.all_reduce(np.ones(1000, np.float32)).wait()
        context.stop_timeline()


def timeline_until_killed():
    with sluice.Context() as context, context.join() as job:
        job.barrier().wait()
        print("joined", flush=True)
        array = np.ones(1000, np.float32)
        while True:
            job.all_reduce(array).wait()


def open_and_close():
    for _ in range(3):
        with sluice.Context():
            pass


def others_are_awaited(barrier):
    deadline = time.monotonic() + 60
    while barrier.stragglers != list(range(1, RANKS)):
        assert time.monotonic() < deadline, barrier.stragglers
        barrier.done()


def waits_are_bounded(job):
    """Rank 0 polls while the others wait for its message in another job."""
    with job._context.join(job=2) as word:
        if RANK == 0 and RANKS > 1:
            barrier = job.barrier()
            begin = time.monotonic()
            error = refused(lambda: barrier.wait(0.15), TimeoutError, "0.15 s")
            assert time.monotonic() - begin >= 0.15 and isinstance(error, sluice.Error)
            assert not barrier.done()
            others_are_awaited(barrier)
            refused(lambda: barrier.statistics, ValueError, "not done")
            assert job.stragglers == list(range(1, RANKS))
            assert job.statistics.ops_pending == 1 and barrier.progress == 0
            word.barrier().wait()
        else:
            word.barrier().wait()
            barrier = job.barrier()
        assert barrier.wait() is None
        assert barrier.progress == 1 and job.stragglers == [] and job.statistics.ops_pending == 0
        assert job.statistics.ops_completed > 0 and job.statistics.packets_sent > 0


def other_threads_run(job):
    """While one thread waits: rank 0's barrier ends only when its other thread has released the
    others."""
    with job._context.join(job=2) as word:
        if RANK == 0:
            other = threading.Thread(target=lambda: word.barrier().wait())
            barrier = job.barrier() if RANKS > 1 else None
            other.start()
            if barrier:
                barrier.wait()
            other.join()
        else:
            word.barrier().wait()
            job.barrier().wait()


def aborted(parent):
    with parent._context.join(job=2) as job:
        assert job.failure is None
        parent.barrier().wait()
        aborts = RANK == RANKS - 1
        if aborts:
            job.abort("tests do so")
        text = "tests do so" if aborts else f"rank {RANKS - 1} ended the job"
        error = refused(lambda: job.barrier().wait(), sluice.Error, text)
        job.abort()
        assert job.failure.status is error.status and str(job.failure) == str(error)
        expected = sluice.Status.ABORTED if aborts else sluice.Status.RANK_LEFT
        assert job.failure.status is expected and job.failure.op is None
    parent.barrier().wait()
    refused(lambda: job.failure, ValueError, "closed")


def timed_out(parent):
    with parent._context.join(job=2) as job:
        parent.barrier().wait()
        done = job.barrier()
        done.wait()
        done.set_timeout(None)
        refused(lambda: done.set_timeout(0), ValueError, "0 s; more than 0")
        refused(lambda: done.set_timeout(90_000), ValueError, "86400000 expected")
        parent.barrier().wait()
        if RANKS == 1:
            return
        if RANK == 0:
            barrier = job.barrier()
            barrier.set_timeout(0.05)
            error = refused(barrier.wait, sluice.Error, "op 1 (barrier) was not done within 50 ms")
        else:
            deadline = time.monotonic() + 60
            while not job.failure and time.monotonic() < deadline:
                time.sleep(0.001)
            error = job.failure
        assert error.status is sluice.Status.OP_TIMED_OUT and error.op == 1
        assert not isinstance(error, sluice.WaitTimeout)


def as_they_end(job):
    """For two communicators, by waits and by a descriptor."""
    queue, other_queue = sluice.CompletionQueue(), sluice.CompletionQueue()
    queue.interrupt()
    assert queue.next() is None and queue.next(0) is None and queue.next(0.06) is None
    with job.duplicate() as other:
        works = [each.all_reduce(np.full(1000 * i, i + 1.0)) for i in range(10)
                 for each in (job, other)]
        for work in works:
            queue.add(work)
            other_queue.add(work)
        assert len(queue) == len(works)
        ended = []
        while queue:
            ended.append(queue.next())
            assert ended[-1].done()
        assert set(ended) == set(works) and len(ended) == len(works)
        while other_queue:
            assert select.select([other_queue], [], [], 60)[0] == [other_queue]
            assert other_queue.next(0).done()
        assert not select.select([other_queue], [], [], 0)[0]
        barrier = other.barrier()
        queue.add(barrier)
        error = None
        try:
            queue.add(barrier)
        except sluice.InvalidArgument as caught:
            error = caught
        assert (error is not None) == (len(queue) == 1)  # it may have ended before
    waiter = threading.Thread(target=lambda: ended.append(other_queue.next()))
    waiter.start()
    other_queue.interrupt()
    waiter.join()
    assert ended[-1] is None


def awaited_by_tasks(job):
    """For two event loops in two threads, while ops begin that nobody awaits."""
    async def one(number):
        array = np.full(1000 * number, RANK + 1, np.float32)
        assert await others[number % 2].all_reduce(array) is array
        assert (array == sum(range(1, RANKS + 1))).all()
        return number

    async def all_of(numbers):
        assert await asyncio.gather(*(one(n) for n in numbers)) == list(numbers)

    async def cancelled():
        barrier = late.barrier()
        task = asyncio.ensure_future(barrier)
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return barrier
        return barrier  # it was done

    async def failed():
        job.barrier().wait()
        if RANK == RANKS - 1:
            late.abort("tests do so")
        try:
            await late.barrier()
        except sluice.Error as error:
            assert "tests do so" in str(error) or "ended the job" in str(error)
            return
        raise AssertionError("no error")

    with job._context.join(job=2) as first, job._context.join(job=3) as second, \
            job._context.join(job=4) as late:
        others = (first, second)
        threads = [threading.Thread(target=lambda n=n: asyncio.run(all_of(range(n, 40, 2))))
                   for n in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            job.all_reduce(np.ones(100, np.float32))
        for thread in threads:
            thread.join()
        barrier = asyncio.run(cancelled())
        assert barrier.wait() is None and asyncio.run(value_of(barrier)) is None
        asyncio.run(failed())


async def value_of(work):
    return await work


def in_a_child(job):
    refused(job.barrier, sluice.Error, "forked")
    refused(sluice.Context, sluice.Error, "forked")


def forked_children(job):
    child = multiprocessing.get_context("fork").Process(target=in_a_child, args=(job,))
    child.start()
    child.join()
    assert child.exitcode == 0
    job.barrier().wait()


def all_at_once():
    """Everything that a job can do, one after the other."""
    with sluice.Context() as context, context.join() as job:
        assert (job.rank, job.world_size) == (RANK, RANKS)
        for scenario in (types_and_reductions, moves, bools_of_any_byte, parts, messages,
                         apart_and_sparse, blocks_of_the_op, sums_of_few_bits,
                         memory_of_the_library, no_elements, compressed_and_summed,
                         largest_of_the_sum, bad_arguments, splits, arrays_outlive_their_names,
                         arrays_are_let_go, interrupted_calls, waits_are_bounded, other_threads_run,
                         aborted, timed_out, awaited_by_tasks, as_they_end, forked_children):
            try:
                scenario(job)
            except BaseException:
                print("in", scenario.__name__, file=sys.stderr)
                raise
        job.leave()
        refused(lambda: job.barrier().wait(), sluice.Error)
    refused(job.barrier, ValueError, "closed")
    refused(context.join, ValueError, "closed")


def settings_of_jobs_are_kept():
    del os.environ["SLUICE_RANK"], os.environ["SLUICE_WORLD_SIZE"]
    with sluice.Context(rank=RANK, world_size=RANKS, job=4) as context, context.join() as job:
        assert (job.rank, job.world_size) == (RANK, RANKS)
        job.barrier().wait()


def garbage_in_a_cycle():
    """Objects that are dropped together are closed in order: another Context can be opened."""
    for _ in range(2):
        holder = types.SimpleNamespace(context=sluice.Context())
        holder.job = holder.context.join()
        holder.job.barrier().wait()
        holder.itself = holder
        del holder
        gc.collect()


def interrupted():
    """Rank 0 waits for an op that the other never begins, until a signal comes; the other waits
    until rank 0 has left."""
    with sluice.Context() as context, context.join() as job, context.join(job=2) as other:
        if RANK != 0:
            other.barrier().wait()
        barrier = job.barrier()
        print("waiting", flush=True)
        try:
            barrier.wait()
        except KeyboardInterrupt:
            assert not barrier.done()
            others_are_awaited(barrier)
            print("interrupted", flush=True)


def interrupted_join():
    """Rank 0 joins for ever, until a signal comes; then it joins again."""
    with sluice.Context() as context:
        print("joining", flush=True)
        try:
            context.join(join_timeout_ms=600_000)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        with context.join() as job:
            job.barrier().wait()


def joins_and_leaves():
    with sluice.Context() as context, context.join() as job:
        job.barrier().wait()


def interrupted_split():
    """As interrupted(), but in a split."""
    with sluice.Context() as context, context.join() as job, context.join(job=2) as other:
        if RANK != 0:
            other.barrier().wait()
        try:
            print("waiting", flush=True)
            job.split(0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)


def awaits_the_other():
    with sluice.Context() as context, context.join() as job:
        job.barrier().wait()


def raise_(error):
    raise error


def raises_in_with(job, error):
    with contextlib.suppress(type(error)), job:
        raise error


def raises_and_closes(job, error):
    with contextlib.suppress(type(error)):
        try:
            raise error
        finally:
            job.close()


def raises_and_aborts(job, error):
    try:
        raise error
    except type(error):
        job.abort("tests do so")


def raises_with_a_message_pending(job, error):
    job.recv(np.empty(10), 0)
    raises_in_with(job, error)


def fails():
    """The last rank's exceptions end its use of jobs one after the other, at last its program. The
    others, which call a collective, get an error that says how it ended."""
    failed, left = f"rank {RANKS - 1} failed: an exception", f"rank {RANKS - 1} left the job"
    context = sluice.Context()
    try:
        raise ValueError("it has nothing to do with the job that is joined meanwhile")
    except ValueError:
        job = context.join()
        is_left(job, job.close, left)
    for number, (end, error, told) in enumerate((
            (raises_in_with, ValueError("tests do so"), failed),
            (raises_in_with, KeyboardInterrupt(), failed),
            (raises_in_with, SystemExit(1), failed),
            (raises_in_with, SystemExit(0), left),
            (raises_in_with, StopIteration(), left),
            (raises_and_closes, ValueError("tests do so"), failed),
            (raises_and_aborts, ValueError("tests do so"), failed),
            (raises_with_a_message_pending, ValueError("tests do so"), failed)), 2):
        job = context.join(job=number)
        is_left(job, functools.partial(end, job, error), told)
    job = context.join()
    is_left(job, functools.partial(raise_, ValueError("the program ends")), failed)
    print("told", flush=True)


def is_left(job, leave, told):
    """The last rank leaves when all have joined; the others get an error."""
    job.barrier().wait()
    if RANK == RANKS - 1:
        return leave()
    error = refused(job.barrier().wait, sluice.Error, told)
    assert (error.status, error.rank) == (sluice.Status.RANK_LEFT, RANKS - 1), error
    job.close()


def memory_is_freed_too_early():
    """The last rank ends after its call and before the others' calls: it sums no piece of the
    op."""
    job = sluice.Context().join()
    freed, size = os.environ["FREED"], 16 << 10
    if RANK < RANKS - 1:
        while not os.path.exists(freed):
            time.sleep(0.001)
        work = job.all_reduce(np.ones(size // 4, np.float32))
    else:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        memory = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
        array = np.frombuffer((ctypes.c_char * size).from_address(memory), np.float32)
        array[:] = 1
        work = job.all_reduce(array)
        libc.munmap(ctypes.c_void_p(memory), ctypes.c_size_t(size))
        with open(freed, "w", encoding="ascii"):
            pass
    work.wait()


def ends_with_ops_in_flight():
    context = sluice.Context()
    job = context.join()
    job.all_reduce(np.ones(1_000_000, np.float32))
    print("started", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
