"""The examples of examples/torch, trained with Gloo and with Sluice."""
import json
import os
import shlex
import statistics
import sys
from dataclasses import dataclass

import checkout
import processes
import programs
from rounds import Contestant
from sparse_peers import MPIRUN_ON_HOSTS

EXAMPLES = {  # name: script and arguments
    "section_classifier": ["section_classifier", "--steps", "120"],
    "dense_gradients": ["section_classifier", "--dense-gradients", "--steps", "16"],
    "language_model": ["language_model", "--steps", "60"],
    "language_model_sgd": ["language_model", "--steps", "120", "--optimizer", "sgd",
                           "--learning-rate", "0.2"],
}
TOP_K = ["sluice", "--hook", "top-k", "--ratio", "0.08", "--bf16-wire"]
WARM_UP = 4  # steps that do not count: DDP makes new buckets after the first


@dataclass(frozen=True)
class Training:
    """What is measured: one example."""
    example: str
    ranks: int
    settings: tuple = ()  # further settings, after those of EXAMPLES


class Trainer(Contestant):
    """Fresh ranks each time. Those of Sluice sum among themselves, where DDP's buckets lie in
    memory that they share, or send packets to a fresh aggregator. `flags`: the backend, and
    settings that override those of the example."""

    def __init__(self, name, flags, in_packets=False):
        self.name, self.flags, self.in_packets = name, flags, in_packets
        self.way = "TCP" if "sluice" not in flags else "packets" if in_packets else "one host"

    def measure(self, point, _, __):
        programs.need_modules("torch")
        figures = self.train(point)
        return {self.name: 1e6 * median_of([figures], "exchange_seconds")}

    def command(self, point, path):
        """The command of a rank. Rank 0 writes its figures to `path`."""
        name, *settings = EXAMPLES[point.example]
        script = os.path.join(checkout.ROOT, "examples", "torch", name + ".py")
        return [checkout.DEBIAN_PYTHON, script, *settings, *point.settings,
                "--backend", *self.flags, "--figures", path]

    def train(self, point):
        """Returns the figures that rank 0 has written."""
        path = self.stage.directory("figures.json")
        daemons = [self.stage.start_daemon()] if self.in_packets else []
        environment = {
            "SLUICE_AGGREGATORS": ",".join(daemon.address for daemon in daemons),
            "SLUICE_WORLD_SIZE": point.ranks, "MASTER_PORT": processes.free_tcp_port(),
            "GLOO_SOCKET_IFNAME": "lo", **of_python()}
        job = [self.stage.start(f"rank{rank}", *self.command(point, path), SLUICE_RANK=rank,
                                **environment)
               for rank in range(point.ranks)]
        for rank in job:
            if rank.wait(1200) != 0:
                sys.exit(rank.report())
        self.stage.forget([*job, *daemons])
        return read(path)


class TrainerOnLinks(Trainer):
    """Each rank on a host of its own behind a bridge, with links of `rate` Mbit/s. Sluice has as
    many hosts more, its aggregators'."""

    def __init__(self, name, flags, rate):
        super().__init__(name, flags, in_packets=True)
        self.rate = rate
        self.way = f"{'packets' if 'sluice' in flags else 'TCP'}, {rate} Mbit/s"

    def train(self, point):
        path, meeting = self.stage.directory("figures.json"), self.stage.directory("meeting")
        rank = [*self.command(point, path), "--meet", f"file://{meeting}"]
        sizes = ["--workers", point.ranks, "--rate", self.rate]
        if "sluice" in self.flags:
            command = [checkout.LOCAL_CLUSTER, "--build", checkout.build, "--transport",
                       "af_packet", *sizes, "--aggregators", point.ranks, "--quiet-ranks", "--",
                       *rank]
        else:
            by_mpirun = ("RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
                         f" GLOO_SOCKET_IFNAME=port0 exec {shlex.join(rank)}")
            command = [sys.executable, MPIRUN_ON_HOSTS, *sizes, "--", "sh", "-c", by_mpirun]
        programs.run_with({**os.environ, **of_python()}, *map(str, command))
        if os.path.exists(meeting):  # PyTorch removes it when all ranks end well
            os.unlink(meeting)
        return read(path)


def of_python():
    """The environment of a rank."""
    return {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join((checkout.torch_package(), checkout.TORCH_CONTRIB))}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def median_of(all_figures, name):
    return statistics.median(x for figures in all_figures for x in figures[name][WARM_UP:])


def all_trainers():
    """Gloo first."""
    return [
        Trainer("gloo", ["gloo"]),
        Trainer("sluice", ["sluice"]),
        Trainer("sluice-packets", ["sluice"], in_packets=True),
        Trainer("sluice-top-k", TOP_K),
    ]


def trainers_on_links(rate):
    return [TrainerOnLinks("gloo", ["gloo"], rate), TrainerOnLinks("sluice", ["sluice"], rate),
            TrainerOnLinks("sluice-top-k", TOP_K, rate)]
