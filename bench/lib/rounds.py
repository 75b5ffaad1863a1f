"""Measures contestants alternately: those that are compared run within the same seconds. Rounds in
which the cores were far from each other, or changed, do not count."""
import json
import math
import os
import sys
import time
from dataclasses import dataclass, field

import placement
import processes
from ranks import WrongSums

ATTEMPTS = 3  # times as many rounds as are wanted, at most


@dataclass
class Round:
    """One point, once by each contestant."""
    point: object
    number: int
    label: str = "same-core"
    counts: bool = True
    distances_ns: list = field(default_factory=list)
    values: dict = field(default_factory=dict)  # by name; empty for wrong sums
    wrong: list = field(default_factory=list)  # their error messages


class TimeIsUp(Exception):
    """There are rounds left to do; those that were done are in the journal."""


class Journal:
    """Keeps rounds in a file, if there is one, so that a long run can be done in parts; none begins
    after `deadline` (of time.monotonic())."""

    def __init__(self, path=None, deadline=math.inf):
        self.path, self.deadline = path, deadline

    def rounds_of(self, points):
        if self.path is None or not os.path.exists(self.path):
            return []
        by_name = {repr(point): point for point in points}
        with open(self.path, encoding="utf-8") as file:
            kept = [json.loads(line) for line in file]
        return [Round(**{**this, "point": by_name[this["point"]]}) for this in kept
                if this["point"] in by_name]

    def add(self, this):
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                print(json.dumps({**vars(this), "point": repr(this.point)}), file=file)

    def require_time(self):
        if time.monotonic() > self.deadline:
            raise TimeIsUp


NO_JOURNAL = Journal()


class Contestant:
    """The base of all contestants. Each adds measure(point, seed, check), which returns values by
    name."""

    def takes(self, _):
        """Whether it can measure a point."""
        return True

    def start(self, stage, _):
        """Called before the rounds with a number of ranks."""
        self.stage = stage

    def stop(self):
        """Called after them."""


def measure(point, number, contestants, place, seed):
    """Runs one round. Each round begins with another contestant."""
    begin = number % len(contestants)
    this = Round(point, number)
    for contestant in contestants[begin:] + contestants[:begin]:
        if contestant.takes(point):
            this.distances_ns.append(place.look())
            try:
                this.values.update(contestant.measure(point, seed + number, number == 0))
            except WrongSums as wrong:
                this.wrong.append(f"{contestant.name}: {wrong}")
    this.distances_ns.append(place.look())
    this.label = placement.label(this.distances_ns)
    return this


def run(points, contestants, wanted, accepted=placement.ACCEPTED, seed=1, journal=NO_JOURNAL):
    """Runs rounds of all points, until `wanted` rounds of each count, or three times as many were
    run. A round counts if its placement is one of those accepted. Rounds in the journal are not
    measured again.

    A contestant says which points it `takes(point)`. Its `start(stage, ranks)` is called for each
    number of ranks, `measure(point, seed, check)` returns values by name, and `stop()` is
    called at the end.
    """
    place = placement.Placement()
    rounds = journal.rounds_of(points)

    def lacking(ranks):
        return [point for point in points if point.ranks == ranks
                and counted(rounds, point) < wanted and begun(rounds, point) < ATTEMPTS * wanted]

    for ranks in sorted({point.ranks for point in points}):
        if not lacking(ranks):
            continue
        with processes.Stage() as stage:
            try:
                for contestant in contestants:
                    contestant.start(stage, ranks)
                while points_left := lacking(ranks):
                    for point in points_left:
                        journal.require_time()
                        this = measure(point, begun(rounds, point), contestants, place, seed)
                        this.counts = this.label in accepted
                        rounds.append(this)
                        journal.add(this)
                        show(this)
            except TimeIsUp:
                raise
            except Exception:
                report_processes(stage)
                raise
            finally:
                for contestant in contestants:
                    contestant.stop()
    return rounds


def counted(rounds, point):
    return sum(r.point == point and r.counts for r in rounds)


def begun(rounds, point):
    return sum(r.point == point for r in rounds)


def report_processes(stage):
    for process in stage.processes:
        print(process.report(), file=sys.stderr)


def show(this):
    """A line, which the next one overwrites in a terminal."""
    begin, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    values = "; ".join(f"{name} {value:.4g}" for name, value in this.values.items())
    print(f"{begin}{this.point} round {this.number}, {this.label}: {values}", end=end, flush=True,
          file=sys.stderr)
    for wrong in this.wrong:
        print(f"{begin}WRONG: {wrong}", file=sys.stderr)
