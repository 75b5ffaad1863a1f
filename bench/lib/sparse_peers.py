"""Sparse AllReduce of pairs (index, fp32 value) by the algorithms of the literature over Open MPI:
see peers/sparse. All take turns on the same data."""
import collections
import json
import subprocess
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
SLUICE = "sluice"
USAGE = 2  # how the program ends on bad flags
WRONG_SUM = "sparse: wrong sum: "  # what it says of one
BYTES = ["sent", "received", "bound"]


@dataclass(frozen=True)
class Point:
    """What is measured: one sum."""
    ranks: int
    elements: int
    density: float  # of each rank's elements
    keys: str = "random"  # or "zipf"


class SparsePeers(Contestant):
    """All algorithms in one group of ranks, so that each sums the same pairs. Of an algorithm there
    are the values NAME, its time, and "NAME sent", "NAME received" and "NAME bound", in bytes."""

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
        """What the program prints; the algorithm that begins is another one for each seed."""
        flags = {"algorithms": ",".join(self.algorithms), "elements": point.elements,
                 "density": point.density, "keys": point.keys, "iterations": self.iterations,
                 "seed": seed, "first": seed, "check": self.checks if check else "none"}
        status, out, err = run(self.stage, self.program, point.ranks, flags)
        if status != 0:
            problem = ranks.WrongSums if WRONG_SUM in err else ConnectionError
            raise problem(f"status {status} of {flags} on {point.ranks} ranks: {err}")
        return [json.loads(line) for line in out.splitlines()]


def run(stage, program, number_of_ranks, flags, mpi_parameters=mpirun.SHARED_MEMORY):
    """(status, stdout, stderr) of the program over MPI."""
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    command = mpirun.command(stage.place, mpi_parameters, "-n", number_of_ranks, program, *words)
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True,
                          text=True, env=stage.environment(**HUGE_PAGES))
    return done.returncode, done.stdout, done.stderr


def values_of(rows):
    """Medians over an algorithm's iterations, of its most loaded rank."""
    by_name = collections.defaultdict(list)
    for row in rows:
        by_name[row["algorithm"]].append(row)
    values = {}
    for name, some in by_name.items():
        values[name] = results.median([row["time_us"] for row in some])
        values[f"{name} sent"] = results.median([max(row["sent"]) for row in some])
        values[f"{name} received"] = results.median([max(row["received"]) for row in some])
        values[f"{name} bound"] = some[0]["bound"]
    return values


class SparseSum(Contestant):
    """Sluice's sparse sum of the same pairs, by bench-sparse-sum on fresh ranks and a fresh
    aggregator. Its bound is 8 bytes for each pair that a rank has, or for each that it gets."""

    def __init__(self, iterations=3):
        self.name, self.iterations = SLUICE, iterations

    def measure(self, point, seed, check):
        pairs = max(1, int(point.density * point.elements + 0.5))
        words = [checkout.LOCAL_CLUSTER, "--build", checkout.build, "--workers", point.ranks,
                 "--only-rank", 0, "--", programs.built("bench-sparse-sum"), point.elements, pairs,
                 point.keys, seed, self.iterations, *(["check"] if check else [])]
        command = [str(word) for word in words]
        done = subprocess.run(command, check=False, capture_output=True, text=True,
                              env=self.stage.environment(**HUGE_PAGES))
        if done.returncode != 0:
            problem = ranks.WrongSums if WRONG_SUM in done.stderr else ConnectionError
            raise problem(f"status {done.returncode} of {' '.join(command)}: {done.stderr}")
        rows = [line[line.index("{"):] for line in done.stdout.splitlines() if "{" in line]
        return values_of([json.loads(row) for row in rows])


def contestants(algorithms, iterations):
    """(contestants, names in the order of the table)"""
    peers = [name for name in algorithms if name != SLUICE]
    some = [SparseSum(iterations)] if SLUICE in algorithms else []
    return some + ([SparsePeers(peers, iterations)] if peers else []), list(algorithms)


def table(done, names):
    """Algorithms one below another, and side by side what each takes."""
    rows = []
    for point, all_rounds in results.by_point(done).items():
        counted = results.usable(all_rounds)
        medians = results.medians(counted)
        for name in names:
            if name in medians:
                rows.append([point.ranks, results.size_name(point.elements),
                             f"{point.density:g}", point.keys, name,
                             results.time_name(medians[name]),
                             *(megabytes(medians[f"{name} {what}"]) for what in BYTES),
                             results.labels(counted)])
    return tables.markdown(["ranks", "elements", "density", "keys", "algorithm", "time",
                            "MB sent", "MB received", "MB bound", "rounds"], rows)


def megabytes(number):
    """Millions, three figures where it has them before the point."""
    return f"{number / 1e6:.3f}" if number < 1e6 else f"{number / 1e6:.1f}"
