"""What the examples share: settings, the process group, and the loop that trains and measures."""
import argparse
import dataclasses
import functools
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HOOKS = ("none", "top-k", "random-k", "threshold", "bf16", "ef21-top-k")


def parse_arguments(description, **defaults):
    """`defaults`: of --steps, --batch, --learning-rate and what an example has of its own; False is
    that of a flag, a tuple holds the choices."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--backend", default="sluice", help="of torch.distributed: sluice or gloo (sluice)")
    add("--hook", choices=HOOKS, default="none",
        help="DDP communication hook; ef21-top-k needs contrib/torch on PYTHONPATH")
    add("--ratio", type=float, default=0.05, help="of the blocks that top-k and random-k keep")
    add("--norm", type=float, default=1e-4, help="above which threshold keeps a block")
    add("--bf16-wire", action="store_true", help="what a hook keeps travels as bfloat16")
    add("--by-adam", action="store_true", help="top-k keeps the blocks that Adam would move most")
    add("--hook-warm-up", type=int, default=0, help="steps in which a hook keeps all blocks (0)")
    add("--seed", type=int, default=1, help="of weights and batches (1)")
    add("--compute-every", type=int, default=4,
        help="one of so many steps is done again without exchange, to be timed; 0: none (4)")
    for name, value in defaults.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            add(flag, action="store_true")
        elif isinstance(value, tuple):
            add(flag, choices=value, default=value[0], help=f"({value[0]})")
        else:
            add(flag, type=type(value), default=value, help=f"({value})")
    add("--meet", metavar="URL", default="env://",
        help="where ranks find each other: an init_method of torch.distributed (env://)")
    add("--threads", type=int, default=1, help="that a rank computes with (1)")
    add("--figures", metavar="FILE", help="where rank 0 writes its figures, as JSON")
    arguments = parser.parse_args()
    if arguments.bf16_wire and arguments.hook in ("none", "bf16"):
        parser.error("--bf16-wire goes with --hook top-k, random-k or threshold")
    if arguments.by_adam and arguments.hook != "top-k":
        parser.error("--by-adam goes with --hook top-k")
    return arguments


def join(backend, meet):
    """The ranks find each other at `meet`; by torchrun's variables, or by local-cluster's on one
    machine."""
    if "RANK" not in os.environ:
        os.environ.update(RANK=os.environ["SLUICE_RANK"], MASTER_ADDR="127.0.0.1",
                          WORLD_SIZE=os.environ["SLUICE_WORLD_SIZE"])
        os.environ.setdefault("MASTER_PORT", "29500")
    if backend == "sluice":
        import sluice_torch  # noqa: F401: registers it
    dist.init_process_group(backend, init_method=meet, rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))


def hook_of(arguments, optimizer):
    import sluice_torch

    options = {"block_elements": int(os.environ.get("SLUICE_BLOCK_ELEMENTS", 256)),
               "warm_up": arguments.hook_warm_up}
    if arguments.bf16_wire:
        options["wire_dtype"] = torch.bfloat16
    by = {"optimizer": optimizer} if arguments.by_adam else {}
    top_k = functools.partial(sluice_torch.top_k, arguments.ratio, **by, **options)
    return {"top-k": top_k,
            "ef21-top-k": lambda: ef21_of(top_k()),
            "random-k": lambda: sluice_torch.random_k(arguments.ratio, **options),
            "threshold": lambda: sluice_torch.threshold(arguments.norm, **options),
            "bf16": lambda: sluice_torch.bf16(**options)}[arguments.hook]()


def ef21_of(hook):
    import sluice_contrib

    return sluice_contrib.ef21(hook)


@dataclasses.dataclass
class Figures:
    """Of rank 0, for each step; seconds are those of the slowest rank."""
    losses: list = dataclasses.field(default_factory=list)  # mean over the ranks
    seconds: list = dataclasses.field(default_factory=list)  # of the step, up to the gradients
    exchange_seconds: list = dataclasses.field(default_factory=list)  # by DDP's own clock: from
    # the first bucket's start to the last one's end
    compute_seconds: list = dataclasses.field(default_factory=list)  # of one without exchange
    bytes_sent: list = dataclasses.field(default_factory=list)  # by all ranks


def bytes_sent(backend):
    """Up to now, by all ranks if each has sent as much as this one. Gloo's bytes are those of the
    interface that it uses; all ranks of one machine share the loopback interface."""
    ranks = dist.get_world_size()
    if backend == "sluice":
        import sluice_torch
        return ranks * sluice_torch.bytes_sent()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    with open("/proc/net/dev", encoding="ascii") as file:
        sent = next(int(line.split()[9]) for line in file
                    if line.strip().startswith(interface + ":"))
    return sent if interface == "lo" else ranks * sent


def mean_and_most(values):
    """Over the ranks. Not timed: the group's own means."""
    mean = torch.tensor(values, dtype=torch.float64)
    most = mean.clone()
    dist.all_reduce(mean)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return (mean / dist.get_world_size()).tolist(), most.tolist()


def train(model, batches, loss_of, optimizer_of, arguments):
    """Trains on `batches`, an iterator of (inputs, targets); each step is timed, and so are some
    without exchange, of which nothing is kept. Returns the Figures."""
    torch.set_num_threads(arguments.threads)
    rank = dist.get_rank()
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel._set_ddp_runtime_logging_sample_rate(1)
    optimizer = optimizer_of(model.parameters())
    if arguments.hook != "none":
        parallel.register_comm_hook(*hook_of(arguments, optimizer))
    elif hasattr(optimizer, "comm_hook"):  # it exchanges for itself
        parallel.register_comm_hook(*optimizer.comm_hook())
    figures = Figures()

    def forward_and_backward(inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(parallel(*inputs), targets)
        loss.backward()
        return float(loss.detach())

    for step in range(arguments.steps):
        inputs, targets = next(batches)
        dist.barrier()
        before, begin = bytes_sent(arguments.backend), time.perf_counter()
        loss = forward_and_backward(inputs, targets)
        seconds = time.perf_counter() - begin
        exchange = 1e-9 * parallel._get_ddp_logging_data().get("backward_comm_time", 0)
        optimizer.step()  # which may send, too
        dist.barrier()
        sent = bytes_sent(arguments.backend) - before
        compute = 0.0
        if arguments.compute_every and step % arguments.compute_every == 3:
            dist.barrier()
            begin = time.perf_counter()
            with parallel.no_sync():
                forward_and_backward(inputs, targets)
            compute = time.perf_counter() - begin
        (loss, sent), _ = mean_and_most([loss, sent])
        _, (seconds, exchange, compute) = mean_and_most([seconds, exchange, compute])
        figures.losses.append(loss)
        figures.seconds.append(seconds)
        figures.exchange_seconds.append(exchange)
        if compute:
            figures.compute_seconds.append(compute)
        figures.bytes_sent.append(sent)
        if rank == 0 and (step % 10 == 0 or step + 1 == arguments.steps):
            print(f"step {step:4}  loss {loss:.5f}  {1000 * seconds:7.1f} ms"
                  f"  {figures.bytes_sent[-1] / 1e6:8.2f} MB sent", flush=True)
    if rank == 0 and arguments.figures:
        with open(arguments.figures, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(figures), file)
    return figures
