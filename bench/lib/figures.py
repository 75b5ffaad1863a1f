"""The rows of the table of figures to reach: what each measures, and what it must come to."""
from dataclasses import dataclass, field

import arrival_order
import contestants
import kernels
import lane
import results
import rounds
from contestants import Point, Sluice

MIB = 1 << 20
BEST_PEERS = ["gloo", "openmpi"]  # Open MPI over shared memory


@dataclass
class Figure:
    """One ratio; higher is better unless `most` is set."""
    what: str
    ratios: list
    threshold: float
    target: float
    rounds: str = ""  # what is known of those that counted
    values: dict = field(default_factory=dict)  # medians of what was measured, by name
    most: bool = False  # the threshold is what it may come to at most

    @property
    def ratio(self):
        return results.median(self.ratios)

    def reaches(self, limit):
        if self.ratio is None:
            return False
        return self.ratio <= limit if self.most else self.ratio >= limit

    def verdict(self):
        if self.reaches(self.target):
            return "target"
        return "pass" if self.reaches(self.threshold) else "missed"


@dataclass
class Settings:
    wanted: int
    accepted: list
    workers: list

    def run(self, points, takers):
        return results.by_point(rounds.run(points, takers, self.wanted, self.accepted))


def figure_of(what, all_rounds, ratios_of, threshold, target, **more):
    """`ratios_of(rounds)` gives the ratios of those that count."""
    counted = results.usable(all_rounds)
    return Figure(what, ratios_of(counted), threshold, target, describe(all_rounds),
                  results.medians(counted), **more)


def describe(all_rounds):
    counted = results.usable(all_rounds)
    dropped = len(all_rounds) - len(counted)
    wrong = sum(len(r.wrong) for r in all_rounds)
    return (results.labels(counted) + (f"; {dropped} dropped" if dropped else "")
            + (f"; {wrong} WRONG" if wrong else ""))


# ------------------------------------------------------------------------------------ the lane
def lane_1500(settings):
    yield lane_figure(settings, 1500, "1500-byte frames, in + out, lane / macswap",
                      lane.frames_name)


def lane_9000(settings):
    yield lane_figure(settings, 9000, "9000-byte frames, payload bit/s, lane / macswap",
                      lane.payload_name)


def lane_figure(settings, frame_bytes, what, name):
    point = lane.Frames(frame_bytes)
    done = settings.run([point], [lane.Lane(), lane.Macswap()])
    figure = figure_of(what, done[point], lambda counted: lane.ratios(counted, name), 0.5, 0.8)
    figure.values = {who: value for who, value in figure.values.items() if who.endswith(name(""))}
    return figure


# ----------------------------------------------------------------------------- against the peers
def best_peer(counted):
    return results.ratios(counted, BEST_PEERS)


def against_peers(settings, density, thresholds, targets):
    points = [Point(n, 100 * MIB, density) for n in settings.workers]
    takers = [c for c in contestants.all_contestants() if c.name in ("sluice", *BEST_PEERS)]
    done = settings.run(points, takers)
    for point in points:
        what = (f"100 MiB fp32, density {100 * density:g}%, {point.ranks} ranks,"
                " better of Gloo and Open MPI / Sluice")
        yield figure_of(what, done[point], best_peer, thresholds[point.ranks], targets[point.ranks])


def dense(settings):
    yield from against_peers(settings, 1.0, {2: 1.0, 4: 1.3, 8: 1.5}, {2: 1.5, 4: 2.0, 8: 2.0})


def density_10(settings):
    yield from against_peers(settings, 0.1, {2: 2.0, 4: 2.5, 8: 3.0}, {2: 3.5, 4: 4.0, 8: 4.5})


def density_1(settings):
    yield from against_peers(settings, 0.01, {2: 5.0, 4: 6.0, 8: 8.0}, {2: 8.0, 4: 9.0, 8: 11.0})


def bitmap(settings):
    point = Point(4, 100 * MIB, 0.01)
    takers = [c for c in contestants.all_contestants() if c.name in BEST_PEERS]
    done = settings.run([point], [Sluice(perf=["--bitmap"]), *takers])
    yield figure_of("100 MiB fp32, density 1%, bitmap given, 4 ranks, better peer / Sluice",
                    done[point], best_peer, 12, 25)


def small(settings):
    point = Point(2, 8)
    takers = [c for c in contestants.all_contestants() if c.name == "gloo"]
    done = settings.run([point], [Sluice(), *takers])
    yield figure_of("8 bytes, 2 ranks, Gloo / Sluice", done[point],
                    lambda counted: results.ratios(counted, ["gloo"]), 5, 20)


# ------------------------------------------------------------------------------- Sluice by itself
class SameCount(Sluice):
    """Of as many elements as fp32 has, in another type."""

    def __init__(self, name):
        super().__init__(name, ["-d", name])

    @staticmethod
    def size(point):
        return point.bytes // 2


def half(settings):
    point = Point(2, 100 * MIB)
    done = settings.run([point], [Sluice("float", ["-d", "float"]), SameCount("half"),
                                  SameCount("bfloat16")])
    for name in ("half", "bfloat16"):
        yield figure_of(f"25 Mi elements, dense, 2 ranks, fp32 / {name}", done[point],
                        lambda counted, n=name: results.ratios(counted, ["float"], n), 1.6, 1.9)


def search(settings):
    rates = kernels.run("^(read|search/percent:0)$", settings.wanted)
    names = ("search/percent:0", "read")
    ratios = [s / r for s, r in zip(*(rates[name] for name in names))]
    yield Figure("search of 100 MiB of zeros / plain read", ratios, 0.7, 0.9, "",
                 {f"{name}, GB/s": results.median(rates[name]) for name in names})


class ArrivalOrder(Sluice):
    """Its sums have other bits than the reference, which adds in rank order."""

    def measure(self, point, seed, check):
        return super().measure(point, seed, check=False)


def reproducible(settings):
    """Against a build in which contributions are added in the order in which they come."""
    other = arrival_order.make()
    for ranks in (2, 8):
        point = Point(ranks, 100 * MIB)
        takers = [Sluice("rank order"), ArrivalOrder("arrival order", build=other)]
        done = settings.run([point], takers)
        yield figure_of(f"100 MiB fp32 dense, {ranks} ranks, rank order / arrival order",
                        done[point],
                        lambda counted: results.ratios(counted, ["rank order"], "arrival order"),
                        1.1, 1.0, most=True)


ROWS = {
    "lane-1500": lane_1500, "lane-9000": lane_9000, "dense": dense, "density-10": density_10,
    "density-1": density_1, "bitmap": bitmap, "small": small, "half": half, "search": search,
    "reproducible": reproducible,
}
