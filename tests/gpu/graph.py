"""A call while a CUDA graph is captured is refused by name, and the group goes on."""
import torch
import torch.distributed as dist

import group

if __name__ == "__main__":
    group.start()
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            group.refused(lambda: dist.all_reduce(tensor), ValueError, "all_reduce", "CUDA graph")
    except RuntimeError as error:
        print("the end of the capture:", error)
    torch.cuda.synchronize()
    dist.all_reduce(tensor)
    group.same(tensor.cpu(), torch.full((1000,), float(group.RANKS) ** 2))
    dist.destroy_process_group()
