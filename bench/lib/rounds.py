"""Contestants measured in turns: what is compared ran within the same seconds, and rounds in which
the cores were far from each other, or moved, do not count."""
import sys
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
    label: str = "near"
    counts: bool = True
    distances_ns: list = field(default_factory=list)
    values: dict = field(default_factory=dict)  # by name; none of wrong sums
    wrong: list = field(default_factory=list)  # what was said of them


class Contestant:
    """What all have that are measured; each adds measure(point, seed, check), values by name."""

    def takes(self, _):
        """Whether it can be asked a point."""
        return True

    def start(self, stage, _):
        """Before the rounds of a number of ranks."""
        self.stage = stage

    def stop(self):
        """After them."""


def measure(point, number, contestants, place, seed):
    """One round. Each begins with another contestant."""
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


def run(points, contestants, wanted, accepted=placement.ACCEPTED, seed=1):
    """Rounds of all points, until of each `wanted` ones count or there were three times as many.
    A round counts if its placement is one of those accepted.

    A contestant says which points it `takes(point)`, is told to `start(stage, ranks)` for each
    number of ranks, gives values by name when asked to `measure(point, seed, check)`, and is at
    last told to `stop()`.
    """
    place = placement.Placement()
    rounds = []
    for ranks in sorted({point.ranks for point in points}):
        with processes.Stage() as stage:
            try:
                for contestant in contestants:
                    contestant.start(stage, ranks)
                for number in range(ATTEMPTS * wanted):
                    for point in points:
                        if point.ranks == ranks and counted(rounds, point) < wanted:
                            this = measure(point, number, contestants, place, seed)
                            this.counts = this.label in accepted
                            rounds.append(this)
                            show(this)
            except Exception:
                report_processes(stage)
                raise
            finally:
                for contestant in contestants:
                    contestant.stop()
    return rounds


def counted(rounds, point):
    return sum(r.point == point and r.counts for r in rounds)


def report_processes(stage):
    for process in stage.processes:
        print(process.report(), file=sys.stderr)


def show(this):
    """A line, which the next writes over where someone watches."""
    begin, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    values = "; ".join(f"{name} {value:.4g}" for name, value in this.values.items())
    print(f"{begin}{this.point} round {this.number}, {this.label}: {values}", end=end, flush=True,
          file=sys.stderr)
    for wrong in this.wrong:
        print(f"{begin}WRONG: {wrong}", file=sys.stderr)
