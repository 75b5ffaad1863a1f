"""Time and CPU of Sluice's AllReduce as one thing grows and the others stay: size, ranks, streams,
block size, frame size (fused width).

Blocks travel in packets, as between machines. Ops run out of place, one after another, on tensors
that are filled once. CPU is user and system time of all processes, of one op and the barriers
before and after it: the difference between a longer and a shorter run.
"""
import resource
from dataclasses import dataclass, replace

from contestants import PACKETS, Point, Sluice

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SHORT_RUN = 2  # iterations
TENSORS_BYTES_MAX = 8 * GIB  # inputs and outputs of all ranks


@dataclass(frozen=True)
class Shape(Point):
    """The value; None is the default."""
    streams: int = None
    block_elements: int = None
    mtu: int = None

    def fits(self):
        return 2 * self.ranks * self.bytes <= TENSORS_BYTES_MAX

    def iterations(self):
        """Iterations of the long run, which takes about a second; the short one has SHORT_RUN."""
        return max(5 * SHORT_RUN, min(2000, (2 * GIB) // max(self.bytes, 1) // self.ranks))


BASE = Shape(ranks=4, bytes=16 * MIB)


def powers(first, last, factor=2):
    while first <= last:
        yield first
        first *= factor


def axis(name, values, base=BASE):
    shapes = [replace(base, **{name: value}) for value in values]
    return [shape for shape in shapes if shape.fits()]


AXES = {
    "size": lambda: [shape for ranks in (2, 8)
                     for shape in axis("bytes", powers(4, 2 * GIB, 4), replace(BASE, ranks=ranks))],
    "ranks": lambda: [shape for size in (8, MIB, 100 * MIB)
                      for shape in axis("ranks", (1, 2, 3, 4, 6, 8, 12, 16),
                                        replace(BASE, bytes=size))],
    "streams": lambda: [shape for density in (1.0, 0.01)
                        for shape in axis("streams", powers(1, 512),
                                          replace(BASE, density=density))],
    "block": lambda: [shape for density in (1.0, 0.01)
                      for shape in axis("block_elements", powers(16, 4096),
                                        replace(BASE, density=density))],
    "frame": lambda: [shape for density in (1.0, 0.01)
                      for shape in axis("mtu", (1500, 2500, 3500, 4500, 6000, 7500, 9000, 9698),
                                        replace(BASE, density=density))],
}


class ScaledSluice(Sluice):
    """Time and CPU of one op."""

    def __init__(self):
        super().__init__(way=PACKETS)

    def measure(self, point, seed, check):
        cpu_short, _ = self.run(point, seed, SHORT_RUN)
        cpu_long, row = self.run(point, seed, point.iterations())
        cpu_us = 1e6 * (cpu_long - cpu_short) / (point.iterations() - SHORT_RUN)
        return {"time_us": row["time_us_median"], "cpu_us": max(0.0, cpu_us),
                "wire_bytes": row["wire_bytes"]}

    def run(self, point, seed, iterations):
        """(CPU seconds of all processes, sluice-perf's row)"""
        before = cpu_seconds_of_children()
        row = self.row(point, seed, iterations=iterations)
        return cpu_seconds_of_children() - before, row

    def perf_flags(self, point):
        flags = ["--in-place", "0", "--refill", "0"]
        if point.streams is not None:
            flags += ["--streams", str(point.streams)]
        if point.block_elements is not None:
            flags += ["--block-elements", str(point.block_elements)]
        return flags

    def cluster_flags(self, point):
        flags = ["--aggregator-arg=--job-memory-mib=1024"]
        if point.streams is not None:
            flags.append(f"--aggregator-arg=--streams={point.streams}")
        if point.mtu is not None:
            flags += ["--mtu", point.mtu]
        return flags


def cpu_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
