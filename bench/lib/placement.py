"""How far apart the two cores are. On shared hosts that changes within seconds, and rates
between processes depend on it."""
import os
import subprocess

import programs

# A cache line's round trip is below: it takes about 55 ns between threads of one core, 120 to 270
# between cores of one socket, 330 and more between sockets.
DISTANCES_NS = [("same-core", 100), ("same-socket", 300), ("other-socket", float("inf"))]
LABELS = [name for name, _ in DISTANCES_NS]
ACCEPTED = ["same-core", "same-socket"]


class Placement:
    """Measures the cores' distance; a measurement takes some ten milliseconds."""

    def __init__(self):
        self.command = [programs.compiled("core_distance.cpp"), *core_pair(os.sched_getaffinity(0))]

    def look(self):
        """Nanoseconds of a cache line's round trip."""
        return float(subprocess.run(self.command, check=True, capture_output=True).stdout)


def core_pair(cores):
    """The first two, as words; one core is as far from itself as it gets."""
    first, *others = sorted(cores)
    return [str(first), str(others[0] if others else first)]


def label(distances):
    """The placement of a round, or "changed" if it was not the same throughout."""
    labels = {next(name for name, limit in DISTANCES_NS if ns < limit) for ns in distances}
    return labels.pop() if len(labels) == 1 else "changed"
