"""One rank of a job that sums pairs and scipy.sparse matrices in Python: `sparse_rank.py SCENARIO`.
It prints nothing if all is right."""
import sys
import weakref

import numpy as np
import sluice
from rank import RANK, RANKS, refused

OWN_KEY = 10 + RANK
NUMBERS = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64")


def pairs_of(rank, dtype=np.float64, row=()):
    """Every rank has its own keys, and some keys that others have, too. Small whole numbers,
    whose sums are exact."""
    numbers = np.random.default_rng(rank)
    keys = np.unique(numbers.integers(0, 1 << 40, 5000) // 7 * 7 % 65521 * 1_000_003)
    values = numbers.integers(0, 100, (keys.size, *row)).astype(dtype)
    return keys, values


def sums_of_all(dtype=np.float64, row=()):
    """The sums of every rank's pairs, by NumPy."""
    parts = [pairs_of(rank, dtype, row) for rank in range(RANKS)]
    keys, places = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    sums = np.zeros((keys.size, *row), dtype)
    np.add.at(sums, places, np.concatenate([values for _, values in parts]))
    return keys, sums


def union(job):
    for dtype, row in ((np.float64, ()), (np.float32, (3,)), (np.int16, (2, 5)),
                       (np.int64, (1,)), (np.float32, (700,))):
        keys, values = pairs_of(RANK, dtype, row)
        before = keys.copy(), values.copy()
        work = job.sparse_all_reduce((keys, values), 1 << 40)
        found, sums = work.wait()
        assert work.done() and work.wait()[1] is sums
        expected = sums_of_all(dtype, row)
        assert found.dtype == np.uint64 and (found == expected[0]).all(), (dtype, row)
        assert sums.dtype == dtype and sums.shape == (found.size, *row)
        assert (sums == expected[1]).all(), (dtype, row)
        assert (keys == before[0]).all() and (values == before[1]).all()
        assert work.rejected == (0, 0, 0, 0) and work.statistics.bytes_sent > 0


def as_an_array(job):
    for row in ((), (3,)):
        keys = np.array([1, OWN_KEY])
        work = job.sparse_all_reduce((keys, np.full((2, *row), 2, np.float32)), 20)
        work.wait()
        expected = np.zeros((20, *row), np.float32)
        expected[1] = 2 * RANKS
        expected[10:10 + RANKS] = 2
        assert (work.dense() == expected).all()
        output = np.ones((20, *row), np.float32)
        assert work.dense(output) is output and (output == expected).all()
        refused(lambda: work.dense(np.zeros(7, np.float32)), ValueError, "(7,)", "(20")
        refused(lambda: work.dense(np.zeros((20, *row))), ValueError, "float64", "float32 of shape")


def types_and_reductions(job):
    """Two keys that all ranks have, and one of the rank's own."""
    keys = np.array([0, OWN_KEY, 1 << 50])
    ranks = range(1, RANKS + 1)
    results = {"sum": sum(ranks), "min": 1, "max": RANKS, "prod": int(np.prod(ranks))}
    for dtype in NUMBERS:
        for reduction, expected in results.items():
            values = np.full(3, RANK + 1, dtype)
            found, sums = job.sparse_all_reduce((keys, values), 1 << 51, reduction=reduction).wait()
            assert found.tolist() == [0, *range(10, 10 + RANKS), 1 << 50]
            assert sums.dtype == dtype and sums.tolist() == [expected, *ranks, expected], reduction
    _, sums = job.sparse_all_reduce((keys, np.full(3, 4.0)), 1 << 51, reduction="avg").wait()
    assert sums.tolist() == [4, *[4 / RANKS] * RANKS, 4]
    ones = np.full((3, 2), 0x3f80, np.uint16)  # 1.0
    _, sums = job.sparse_all_reduce((keys, ones), 1 << 51, reduction="avg",
                                    element_type="bfloat16").wait()
    assert sums.dtype == np.uint16 and (sums[[0, -1]] == 0x3f80).all()
    flags = np.array([RANK == 0, True, False])
    _, sums = job.sparse_all_reduce((keys, flags), 1 << 51, reduction="bor").wait()
    assert sums.dtype == bool and sums.tolist() == [True, *[True] * RANKS, False]


def types_of_keys(job):
    for dtype in ("u8", "i8", "u4", "i4", "u2", "i2", "u1", "i1", ">u8", ">i4"):
        keys = np.array([3, OWN_KEY], dtype)
        found, _ = job.sparse_all_reduce((keys, np.ones(2)), 100).wait()
        assert found.tolist() == [3, *range(10, 10 + RANKS)], dtype
    highest = np.array([2**64 - 4], np.uint64)
    found, _ = job.sparse_all_reduce((highest, np.ones(1)), 2**64 - 3).wait()
    assert found.tolist() == [2**64 - 4]
    gradients = np.array([1, -5, 0, 3, 5, 0], np.float32)
    found, sums = job.sparse_all_reduce(sluice.compress.elements(gradients, 3), 6).wait()
    assert found.tolist() == [1, 3, 4] and sums.tolist() == [-5 * RANKS, 3 * RANKS, 5 * RANKS]


def empty_ranks(job):
    for last in (RANKS - 1, -1):  # the rank that has a key; no rank
        count = int(last == RANK)
        pairs = np.full(count, 7), np.ones((count, 4), np.float32)
        found, sums = job.sparse_all_reduce(pairs, 8).wait()
        assert found.shape == (int(last >= 0),) and sums.shape == (found.size, 4)
        assert found.dtype == np.uint64 and sums.dtype == np.float32 and (sums == 1).all()
        assert not found.flags.writeable and not sums.flags.writeable


def thresholds(job):
    values = np.array([0.4, 1, 2, 4, 9, -20]) / RANKS
    pairs = np.arange(6), values
    work = job.sparse_all_reduce(pairs, 6, threshold=8)
    found, sums = work.wait()
    assert found.tolist() == [4, 5] and np.allclose(sums, [9, -20])
    assert work.rejected == (1, 1, 1, 1)
    work = job.sparse_all_reduce(pairs, 6, threshold=float("inf"))
    assert work.wait()[0].size == 0 and sum(work.rejected) == 6


def encodings(job):
    """The ranks' values and their sum are rounded once each; whole numbers up to 7 stay exact."""
    keys = np.array([1, OWN_KEY, 1 << 40])
    for encoding in ("float16", "bfloat16", "int8", "int4"):
        for row in ((), (4,)):
            values = np.full((3, *row), 2, np.float32)
            for seed in (0, 7) if encoding.startswith("int") else (0,):
                work = job.sparse_all_reduce((keys, values), 1 << 41, encoding=encoding,
                                             rounding_seed=seed)
                found, sums = work.wait()
                assert found.tolist() == [1, *range(10, 10 + RANKS), 1 << 40]
                assert sums.dtype == np.float32 and sums.shape == (found.size, *row)
                expected = np.full(sums.shape, 2, np.float32)
                expected[[0, -1]] = 2 * RANKS
                assert (sums == expected).all(), (encoding, row, seed, sums)
    refused(lambda: job.sparse_all_reduce((keys, np.ones(3)), 1 << 41, encoding="int8"),
            sluice.InvalidArgument, "the encoding int8 is one of float, not of double")
    refused(lambda: job.sparse_all_reduce((keys, values), 1 << 41, encoding="int2"),
            sluice.InvalidArgument, "encoding 'int2'")
    refused(lambda: job.sparse_all_reduce((keys, values), 1 << 41, rounding_seed=3),
            sluice.InvalidArgument, "rounding_seed is 3")


def any_order(job):
    keys, values = np.array([9, 4, 9, 1, 4, 9]), np.array([1, 2, 3, 4, 5, 6], np.int32)
    for reduction, expected in (("sum", [4, 7, 10]), ("max", [4, 5, 6])):
        found, sums = job.sparse_all_reduce((keys, values), 10, combine=True,
                                            reduction=reduction).wait()
        factor = RANKS if reduction == "sum" else 1
        assert found.tolist() == [1, 4, 9]
        assert sums.tolist() == [factor * x for x in expected]


def memory_stays_as_long_as_it_is_seen(context):
    with context.join(job=2) as job:
        keys, values = pairs_of(RANK)
        given = weakref.ref(values)
        work = job.sparse_all_reduce((keys, values), 1 << 40)
        found, sums = work.wait()
        del keys, values
        assert given() is None, "what was given is kept"
        handle = weakref.ref(work._handle)
        job.barrier().wait()
        job.barrier().wait()  # whose start forgets ended ops
    view = sums[5:]
    refused(lambda: found.__setitem__(0, 1), ValueError, "read-only")
    del work, found, sums, job
    assert handle() is not None and (view == sums_of_all()[1][5:]).all()
    del view
    assert handle() is None, "memory is kept"


def bad_pairs(job):
    keys, values = np.array([3, 5]), np.ones(2)

    def wrong(*parts, kind=sluice.InvalidArgument, keys=keys, values=values, bound=9, **options):
        refused(lambda: job.sparse_all_reduce((keys, values), bound, **options), kind,
                "sparse_all_reduce", *parts)

    wrong("key 1 is 3, less than the one before it; keys must rise", keys=np.array([5, 3]))
    wrong("key 1 is 5, as the one before it", keys=np.array([5, 5]))
    wrong("the last key is 5; less than key_bound 5", bound=5)
    wrong("key_bound 0; 1..2^64-2", bound=0)
    wrong("key_bound 18446744073709551615", bound=2**64 - 1)
    wrong("key_bound = None", bound=None, kind=TypeError)
    wrong("key_bound = 1.5", bound=1.5, kind=TypeError)
    wrong("keys has -4; 0 or more", keys=np.array([-4, 3]))
    wrong("keys is float64 of shape (2,)", keys=np.ones(2))
    wrong("keys is int64 of shape (2, 1)", keys=keys[:, None])
    wrong("keys is not contiguous", keys=np.arange(4)[::2])
    wrong("keys is a list", keys=[3, 5], kind=TypeError)
    wrong("values is a list", values=[1, 1], kind=TypeError)
    wrong("values is float64 of shape (3,); 2 rows", values=np.ones(3))
    wrong("values is float64 of shape ()", values=np.ones(()))
    wrong("values is not contiguous", values=np.ones((2, 4))[:, ::2])
    wrong("row_elements is 0", values=np.ones((2, 0)))
    wrong("dtype uint32", values=np.ones(2, np.uint32))
    wrong("float64 with element_type", element_type="bfloat16")
    wrong("reduction 'mean'", reduction="mean")
    wrong("bor is one of integers", reduction="bor")
    wrong("threshold is -2", threshold=-2)
    wrong("threshold is nan", threshold=float("nan"))
    wrong("threshold = None", threshold=None, kind=TypeError)
    wrong("there can be no threshold", values=np.ones((2, 5000)), threshold=1)
    wrong("result_bytes -1", result_bytes=-1)
    wrong("result_bytes = 1.5", result_bytes=1.5, kind=TypeError)
    wrong("tag -1", tag=-1)
    for tensor in (keys, (keys,), None, "ab"):
        refused(lambda tensor=tensor: job.sparse_all_reduce(tensor, 9), TypeError,
                "a pair of arrays")


def results_above_their_bound(job):
    pairs = np.arange(1000), np.ones(1000, np.float32)
    work = job.sparse_all_reduce(pairs, 1000, result_bytes=600 if RANK == 0 else 1 << 20)
    if RANK == 0:
        refused(work.wait, sluice.InvalidArgument, "more than the 600 bytes allowed")
        refused(lambda: work.rejected, sluice.InvalidArgument, "600 bytes allowed")
    else:
        assert (work.wait()[1] == RANKS).all()
    job.barrier().wait()


def ranks_that_disagree(context):
    """The first call ends the job; a slower rank may get that error while it joins."""
    if RANKS == 1:
        return

    def disagree(job_id, bound, row, threshold):
        with context.join(job=job_id) as job:
            job.sparse_all_reduce((np.array([1]), np.ones((1, row))), bound,
                                  threshold=threshold).wait()

    for wrong in ((3, 9 + RANK, 1, 0), (4, 9, 1 + RANK, 0), (5, 9, 1, RANK)):
        error = refused(lambda wrong=wrong: disagree(*wrong), sluice.Error)
        assert error.status == sluice.Status.OP_MISMATCH, error


def pairs():
    with sluice.Context() as context:
        with context.join() as job:
            for scenario in (union, as_an_array, types_and_reductions, types_of_keys, empty_ranks,
                             thresholds, encodings, any_order, bad_pairs,
                             results_above_their_bound):
                scenario(job)
        memory_stays_as_long_as_it_is_seen(context)
        ranks_that_disagree(context)
    assert "scipy" not in sys.modules


# ---- matrices: Debian's python3-scipy ---------------------------------------------------------


def matrix_of(rank, dtype, shape=(30, 70), density=0.1):
    import scipy.sparse
    numbers = np.random.default_rng(1000 + rank)
    dense = numbers.integers(1, 5, shape) * (numbers.random(shape) < density)
    return scipy.sparse.coo_matrix(dense.astype(dtype))


def dense_sum(dtype, **named):
    return sum(matrix_of(rank, dtype, **named).toarray() for rank in range(RANKS))


def formats(job):
    import scipy.sparse
    for kind in ("matrix", "array"):
        for name in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia"):
            matrix = getattr(scipy.sparse, f"{name}_{kind}")(matrix_of(RANK, np.float32))
            before = matrix.copy()
            result = job.sparse_all_reduce(matrix).wait()
            assert type(result) is type(matrix) and result.format == name
            assert result.dtype == np.float32 and result.shape == matrix.shape
            assert (result.toarray() == dense_sum(np.float32)).all(), name
            assert (matrix.toarray() == before.toarray()).all()


def types_of_matrices(job):
    for dtype in NUMBERS:
        if dtype != "float16":  # which scipy does not have
            for name in ("csr", "coo"):
                matrix = matrix_of(RANK, dtype).asformat(name)
                result = job.sparse_all_reduce(matrix).wait()
                assert result.dtype == dtype and (result.toarray() == dense_sum(dtype)).all()
    flags = matrix_of(RANK, bool).tocsr()
    result = job.sparse_all_reduce(flags, reduction="bor").wait()
    assert result.dtype == bool and (result.toarray() == (dense_sum(bool) > 0)).all()


def shapes(job):
    import scipy.sparse
    for shape in ((1, 500), (500, 1), (1, 1), (0, 5), (5, 0), (0, 0)):
        for name in ("csr", "coo", "csc"):
            matrix = matrix_of(RANK, np.float64, shape=shape).asformat(name)
            result = job.sparse_all_reduce(matrix).wait()
            assert result.shape == shape and result.format == name
            assert (result.toarray() == dense_sum(np.float64, shape=shape)).all()
    wide = (1 << 31, 1 << 32)  # more rows than memory holds a pointer for
    place = (np.array([RANK, 2**31 - 1]), np.array([5, 2**32 - 1]))
    result = job.sparse_all_reduce(scipy.sparse.coo_matrix((np.ones(2), place), wide)).wait()
    assert result.row.tolist() == [*range(RANKS), 2**31 - 1]
    assert result.col.tolist() == [*[5] * RANKS, 2**32 - 1]
    assert result.data.tolist() == [*[1] * RANKS, RANKS]


def stored_twice_and_unsorted(job):
    """An element is the sum of all values stored for it, for every reduction."""
    import scipy.sparse
    places = np.array([2, 0, 2, 2]), np.array([3, 1, 0, 3])
    coo = scipy.sparse.coo_matrix((np.array([4.0, 1, 2, RANK + 1]), places), (3, 4))
    csr = scipy.sparse.csr_matrix((np.array([1.0, 4, 2, RANK + 1]), np.array([1, 3, 0, 3]),
                                   np.array([0, 1, 1, 4])), (3, 4))
    rising = scipy.sparse.coo_matrix((csr.data[[0, 2, 1, 3]], (np.array([0, 2, 2, 2]),
                                                               np.array([1, 0, 3, 3]))), (3, 4))
    for matrix in (coo, csr, rising):
        stored = matrix.data.copy()
        for reduction, expected in (("sum", 4 * RANKS + sum(range(1, RANKS + 1))),
                                    ("max", 4 + RANKS)):
            result = job.sparse_all_reduce(matrix, reduction=reduction).wait()
            assert result.nnz == 3 and result.toarray()[2, 3] == expected, reduction
            assert matrix.nnz == 4 and (matrix.data == stored).all()


def results_can_be_written(job):
    for name in ("coo", "csr"):
        result = job.sparse_all_reduce(matrix_of(RANK, np.float64).asformat(name)).wait()
        result.data *= 2
        assert (result.toarray() == 2 * dense_sum(np.float64)).all()
        result.sum_duplicates()


def options_of_matrices(job):
    work = job.sparse_all_reduce(matrix_of(RANK, np.float64).tocsr(), threshold=4, tag=8)
    expected = dense_sum(np.float64)
    assert (work.wait().toarray() == expected * (expected >= 4)).all()
    assert sum(work.rejected) == ((expected > 0) & (expected < 4)).sum()
    average = job.sparse_all_reduce(matrix_of(RANK, np.float64).tocsc(), reduction="avg").wait()
    assert np.allclose(average.toarray(), expected / RANKS)


def bad_matrices(job):
    import scipy.sparse
    matrix, wrong = matrix_of(RANK, np.float32), sluice.InvalidArgument
    refused(lambda: job.sparse_all_reduce(matrix, 9), wrong, "key_bound 9; None expected")
    refused(lambda: job.sparse_all_reduce(matrix.astype(complex)), wrong, "dtype complex128")
    refused(lambda: job.sparse_all_reduce(matrix.astype(bool)), wrong, "dtype bool")
    endless = scipy.sparse.coo_matrix((1 << 40, 1 << 40))
    refused(lambda: job.sparse_all_reduce(endless), wrong, "(1099511627776, 1099511627776)")
    refused(lambda: job.sparse_all_reduce(matrix.toarray()), TypeError, "not a ndarray")


def matrices():
    with sluice.Context() as context, context.join() as job:
        for scenario in (formats, types_of_matrices, shapes, stored_twice_and_unsorted,
                         results_can_be_written, options_of_matrices, bad_matrices):
            scenario(job)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
