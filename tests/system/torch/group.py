"""What the rank programs share: the default group "sluice", one of Gloo's beside it, and inputs
that every rank can compute for all ranks."""
import functools
import itertools
import os
import sys

import torch
import torch.distributed as dist

import sluice_torch  # noqa: F401: registers the backend
from sluice_torch.groups import backend_of

RANK = int(os.environ.get("SLUICE_RANK", 0))
RANKS = int(os.environ.get("SLUICE_WORLD_SIZE", 1))
DEVICE = os.environ.get("DEV", "cpu")  # scripts/gpu-check runs some of these programs with "cuda"


starts = itertools.count()


def start(**settings):
    torch.set_num_threads(1)
    store = f"file://{os.environ['STORE']}{next(starts)}"
    dist.init_process_group("sluice", init_method=store, rank=RANK, world_size=RANKS, **settings)


def default():
    return dist.distributed_c10d._get_default_group()


def backend():
    """Sluice's part of the default group. PyTorch 2 itself refuses what a group's calls are given
    of a layout that it does not know."""
    return backend_of(None, "the test")


@functools.cache
def gloo():
    return dist.new_group(backend="gloo")


def of_rank(rank, shape, dtype, seed=0):
    """Small whole numbers, so that sums are exact in every dtype; some zero."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator, device="cpu").to(DEVICE, dtype)


def of_all(shape, dtype, seed=0):
    return [of_rank(rank, shape, dtype, seed) for rank in range(RANKS)]


def same(found, expected, what=None):
    assert found.dtype == expected.dtype and torch.equal(found, expected), (what, found, expected)


def refused(call, kind, *parts):
    try:
        call()
    except kind as error:
        for part in ("sluice: ", *parts):
            assert part in str(error), f"{part!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def run(*scenarios):
    for scenario in scenarios:
        try:
            scenario()
        except BaseException:
            print("in", scenario.__name__, file=sys.stderr)
            raise
    dist.destroy_process_group()
