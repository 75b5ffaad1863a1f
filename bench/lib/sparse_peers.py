"""Sparse AllReduce of pairs (index, fp32 value) by the algorithms of the literature over Open MPI:
see peers/sparse. All alternate on the same data, on one machine or over links with a rate."""
import collections
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import checkout
import mpirun
import programs
import ranks
import results
import tables
from contestants import HUGE_PAGES
from rounds import Contestant

SOURCES = "peers/sparse"
ALGORITHMS = [
    "ssar-recursive-doubling", "ssar-split-allgather", "dsar-split-allgather", "dsar-qsgd8",
    "dsar-qsgd4", "dsar-qsgd2", "allgather-pairs", "allgather-qsgd8", "allgather-qsgd4",
    "allgather-qsgd2", "ok-topk", "ok-topk-from-dense",
]
SLUICE, SLUICE_PACKETS, SLUICE_DENSE = "sluice", "sluice-packets", "sluice-dense"
# The form of the pairs, as an argument of bench-sparse-sum.
FORMS = {SLUICE: "sparse", SLUICE_PACKETS: "sparse", SLUICE_DENSE: "dense"}
MPIRUN_ON_HOSTS = os.path.join(programs.LIBRARY, "mpirun_on_hosts.py")
# How many streams Sluice's ranks have over links: with the default of 64, queues grow to 50 ms, and
# ranks repeat what still waits there.
STREAMS = 16
USAGE = 2  # exit status for bad flags
WRONG_SUM = "sparse: wrong sum: "  # how it reports one
BYTES = ["sent", "received", "bound"]


@dataclass(frozen=True)
class Point:
    """What is measured: one sum."""
    ranks: int
    elements: int
    density: float  # of each rank's elements
    keys: str = "random"  # or "zipf"
    rate: int = None  # Mbit/s of each host's link and direction; None: in one machine's memory


class SparsePeers(Contestant):
    """All algorithms in one group of ranks, so that each sums the same pairs. An algorithm
    has the values NAME, its time, and "NAME sent", "NAME received" and "NAME bound", in bytes."""

    def __init__(self, algorithms=tuple(ALGORITHMS), iterations=3, checks="last"):
        self.name = "sparse-peers"
        self.algorithms, self.iterations, self.checks = algorithms, iterations, checks

    def start(self, stage, _):
        super().start(stage, _)
        programs.need("mpirun")
        self.program = programs.compiled(SOURCES)

    def measure(self, point, seed, check):
        return values_of(self.rows(point, seed, check))

    def rows(self, point, seed, check):
        """Returns the program's output; for each seed another algorithm begins."""
        flags = {"algorithms": ",".join(self.algorithms), "elements": point.elements,
                 "density": point.density, "keys": point.keys, "iterations": self.iterations,
                 "seed": seed, "first": seed, "check": self.checks if check else "none"}
        status, out, err = run(self.stage, self.program, point.ranks, flags, point.rate)
        require(status, err, f"{flags} on {point.ranks} ranks")
        return [json.loads(line) for line in out.splitlines()]


def run(stage, program, number_of_ranks, flags, rate=None):
    """(status, stdout, stderr) of the program over MPI: in shared memory, or between hosts whose
    links have that rate."""
    words = [program, *(word for name, value in flags.items() for word in (f"--{name}", value))]
    if rate is None:
        command = mpirun.command(stage.place, mpirun.SHARED_MEMORY, "-n", number_of_ranks, *words)
    else:
        command = [sys.executable, MPIRUN_ON_HOSTS, "--workers", number_of_ranks, "--rate", rate,
                   "--", *words]
    return output_of(stage, command)


def output_of(stage, command, **settings):
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True,
                          text=True, env=stage.environment(**HUGE_PAGES, **settings))
    return done.returncode, done.stdout, done.stderr


def require(status, errors, what):
    """Raises an exception unless the status is 0."""
    if status != 0:
        problem = ranks.WrongSums if WRONG_SUM in errors else ConnectionError
        raise problem(f"status {status} of {what}: {errors}")


def values_of(rows):
    """Medians over an algorithm's iterations, for its most loaded rank."""
    by_name = collections.defaultdict(list)
    for row in rows:
        by_name[row["algorithm"]].append(row)
    values = {}
    for name, some in by_name.items():
        values[name] = results.median([row["time_us"] for row in some])
        values[f"{name} sent"] = results.median([max(row["sent"]) for row in some])
        values[f"{name} received"] = results.median([max(row["received"]) for row in some])
        values[f"{name} bound"] = some[0]["bound"]
        values[f"{name} loaded"] = results.median(
            [max(row["sent"] + row["received"]) for row in some])
    return values


class SluiceSum(Contestant):
    """Sluice's sum of the same pairs, by bench-sparse-sum on fresh ranks, and over links fresh
    aggregators, as many as ranks, whose links then carry what the ranks' do. The bound is 8 bytes
    for each pair that a rank has, or for each that it gets; of a dense vector, its own bytes."""

    def __init__(self, name=SLUICE, iterations=3):
        self.name, self.iterations = name, iterations

    def takes(self, point):
        return self.name != SLUICE_PACKETS or point.rate is None

    def measure(self, point, seed, check):
        pairs = max(1, int(point.density * point.elements + 0.5))
        command = [checkout.LOCAL_CLUSTER, "--build", checkout.build, "--workers", point.ranks,
                   *self.cluster_flags(point), "--only-rank", 0, "--",
                   programs.built("bench-sparse-sum"), point.elements, pairs, point.keys, seed,
                   self.iterations, FORMS[self.name], *(["check"] if check else [])]
        settings = {} if point.rate is None else {"SLUICE_STREAMS": STREAMS}
        status, out, err = output_of(self.stage, command, **settings)
        require(status, err, " ".join(map(str, command)))
        rows = [line[line.index("{"):] for line in out.splitlines() if "{" in line]
        return values_of([{**json.loads(row), "algorithm": self.name} for row in rows])

    def cluster_flags(self, point):
        """Further flags for local-cluster."""
        if point.rate is None:
            return ["--aggregators", 1 if self.name == SLUICE_PACKETS else 0]
        return ["--transport", "af_packet", "--rate", point.rate, "--aggregators", point.ranks]


def contestants(algorithms, iterations):
    """The contestants, which alternate."""
    peers = [name for name in algorithms if name not in FORMS]
    some = [SluiceSum(name, iterations) for name in algorithms if name in FORMS]
    return some + ([SparsePeers(peers, iterations)] if peers else [])


def table(done, names):
    """Algorithms one below another, and side by side what each takes. Where links have a rate, how
    long the more loaded direction of the most loaded one needs for the bytes that went, and which
    part of the time that is."""
    rows = []
    rates = any(this.point.rate for this in done)
    for point, all_rounds in results.by_point(done).items():
        counted = results.usable(all_rounds)
        medians = results.medians(counted)
        for name in names:
            if name in medians:
                rows.append([point.ranks, results.size_name(point.elements),
                             f"{point.density:g}", point.keys, name,
                             results.time_name(medians[name]),
                             *(megabytes(medians[f"{name} {what}"]) for what in BYTES),
                             *(link_cells(point.rate, medians, name) if rates else []),
                             results.labels(counted)])
    return tables.markdown(["ranks", "elements", "density", "keys", "algorithm", "time",
                            "MB sent", "MB received", "MB bound",
                            *(["link needs", "of time"] if rates else []), "rounds"], rows)


def link_cells(rate, medians, name):
    microseconds = 8 * medians[f"{name} loaded"] / rate
    return results.time_name(microseconds), f"{microseconds / medians[name]:.2f}"


def megabytes(number):
    """In millions, with three digits if it has so many before the point."""
    return f"{number / 1e6:.3f}" if number < 1e6 else f"{number / 1e6:.1f}"
