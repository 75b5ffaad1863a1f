"""One process sums PyTorch's tensors and NumPy's arrays: both bindings share its context, whichever
comes first and goes first."""
import numpy as np
import sluice
import torch
import torch.distributed as dist

import group
from group import RANKS, refused


def torch_sums():
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert (tensor == RANKS).all()


def numpy_sums(job):
    array = np.ones(100, np.float32)
    assert (job.all_reduce(array).wait() == RANKS).all()


if __name__ == "__main__":
    group.start()
    with sluice.Context() as context, context.join() as job:
        torch_sums()
        numpy_sums(job)
        dist.destroy_process_group()
        numpy_sums(job)
        group.start()
        refused(lambda: dist.new_group(pg_options={"mtu": 1400}), ValueError, "1400")
    torch_sums()
    dist.destroy_process_group()
