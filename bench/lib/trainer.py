"""The examples of examples/torch, trained with Gloo and with Sluice."""
import json
import os
import re
import statistics
import sys
from dataclasses import dataclass

import checkout
import contestants
import processes
import programs
from rounds import Contestant

EXAMPLES = {  # name: script and arguments
    "section_classifier": ["section_classifier", "--steps", "120"],
    "dense_gradients": ["section_classifier", "--dense-gradients", "--steps", "16"],
    "language_model": ["language_model", "--steps", "60"],
    "language_model_sgd": ["language_model", "--steps", "120", "--optimizer", "sgd",
                           "--learning-rate", "0.2"],
}
WARM_UP = 4  # steps that are not counted: DDP makes its buckets again after the first


@dataclass(frozen=True)
class Training:
    """What is measured: one example."""
    example: str
    ranks: int
    settings: tuple = ()  # of it, after those of EXAMPLES


class Trainer(Contestant):
    """Fresh ranks, and a fresh aggregator, each time. Blocks go in shared memory if `shares`; then
    DDP's buckets lie there, too. `flags`: the backend, and settings before which the example's
    give way."""

    def __init__(self, name, flags, shares=True):
        self.name, self.flags, self.shares = name, flags, shares
        self.way = "TCP"  # as the last daemon said

    def measure(self, point, _, __):
        programs.need_modules("torch")
        figures = self.train(point)
        return {self.name: 1e6 * median_of([figures], "exchange_seconds")}

    def train(self, point):
        """The figures that rank 0 writes."""
        path = self.stage.directory("figures.json")
        name, *settings = EXAMPLES[point.example]
        script = os.path.join(checkout.ROOT, "examples", "torch", name + ".py")
        daemon = self.stage.start_daemon()
        environment = {
            "SLUICE_AGGREGATORS": daemon.address, "SLUICE_WORLD_SIZE": point.ranks,
            "SLUICE_SHARED_MEMORY": int(self.shares), "SLUICE_LOG": "info",
            "MASTER_PORT": processes.free_tcp_port(), "PYTHONDONTWRITEBYTECODE": 1,
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1,
            "PYTHONPATH": checkout.torch_package()}
        job = [self.stage.start(f"rank{rank}", checkout.DEBIAN_PYTHON, script, *settings,
                                *point.settings, "--backend", *self.flags, "--figures", path,
                                SLUICE_RANK=rank, **environment)
               for rank in range(point.ranks)]
        for rank in job:
            if rank.wait(1200) != 0:
                sys.exit(rank.report())
        if "sluice" in self.flags:
            self.way = self.way_of(daemon, job)
        self.stage.forget([*job, daemon])
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def way_of(self, daemon, job):
        """How blocks went, by the words of the daemon and the ranks."""
        by_reference = re.search(rf": formed, .*{contestants.BY_REFERENCE}", daemon.err)
        if bool(by_reference) != self.shares:
            raise contestants.WrongWay(f"{self.name}: {daemon.err}")
        if any(contestants.COPIED in rank.err for rank in job):
            return "shared memory, ordinary tensors"
        return "shared memory" if self.shares else "packets"


def median_of(all_figures, name):
    return statistics.median(x for figures in all_figures for x in figures[name][WARM_UP:])


def all_trainers():
    """Gloo first."""
    return [
        Trainer("gloo", ["gloo"]),
        Trainer("sluice", ["sluice"]),
        Trainer("sluice-packets", ["sluice"], shares=False),
        Trainer("sluice-top-k", ["sluice", "--hook", "top-k", "--ratio", "0.08", "--bf16-wire"]),
    ]
