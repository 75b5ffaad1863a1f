"""The rows of the table of figures: what each measures, and what it must reach."""
import math
import os
from dataclasses import dataclass, field

import arrival_order
import contestants
import former
import kernels
import lane
import results
import rounds
import trainer
from contestants import PACKETS, Former, Point, Sluice

MIB = contestants.MIB
BEST_PEERS = ["gloo", "openmpi", "mpich"]  # the last two over shared memory
NO_SLOWER = 0.95  # two builds of the same code may differ so much


@dataclass
class Figure:
    """One ratio; higher is better unless `most` is set. Without a threshold it cannot be missed."""
    what: str
    ratios: list
    threshold: float = None
    target: float = None
    rounds: str = ""  # placements of those that counted
    values: dict = field(default_factory=dict)  # medians of the measurements, by name
    most: bool = False  # the threshold is an upper limit

    @property
    def ratio(self):
        return results.median(self.ratios)

    def reaches(self, limit):
        if self.ratio is None or limit is None:
            return False
        return self.ratio <= limit if self.most else self.ratio >= limit

    def verdict(self):
        if self.reaches(self.target):
            return "target"
        if self.threshold is None:
            return "to compare" if self.target is None else "below target"
        return "pass" if self.reaches(self.threshold) else "missed"


@dataclass
class Settings:
    wanted: int
    accepted: list
    workers: list
    journals: str = None  # a directory
    deadline: float = math.inf

    def run(self, points, takers, row):
        """Rounds by point. Rounds in this row's journal are not measured again."""
        path = self.journals and os.path.join(self.journals, f"{row}.jsonl")
        done = rounds.run(points, takers, self.wanted, self.accepted,
                          journal=rounds.Journal(path, self.deadline))
        return results.by_point(done)


def figure_of(what, all_rounds, ratios_of, threshold=None, target=None, **more):
    """`ratios_of(rounds)` returns the ratios of the rounds that count."""
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
    done = settings.run([point], [lane.Lane(), lane.Macswap()], f"lane-{frame_bytes}")
    figure = figure_of(what, done[point], lambda counted: lane.ratios(counted, name), 0.5, 0.8)
    figure.values = {who: value for who, value in figure.values.items() if who.endswith(name(""))}
    return figure


def lane_before(settings):
    """Compared with the last build before blocks could go by reference."""
    before = lane.Lane("before", former.make(former.BEFORE_REFERENCES))
    yield from in_both_frames(settings, "lane-before", lane.Lane(), before)


def lanes(settings):
    """How much two lanes lose by being in one process."""
    yield from in_both_frames(settings, "lanes", lane.LanesInMemory("two lanes of one daemon", 1),
                              lane.LanesInMemory("two daemons", 2))


def in_both_frames(settings, row, *takers):
    points = [lane.Frames(1500), lane.Frames(9000)]
    done = settings.run(points, takers, row)
    one, other = [lane.frames_name(taker.name) for taker in takers]
    for point in points:
        def ratios_of(counted):
            return [r.values[one] / r.values[other] for r in counted
                    if one in r.values and other in r.values]
        yield figure_of(f"{point.frame_bytes}-byte frames, in + out, {takers[0].name} / "
                        f"{takers[1].name}", done[point], ratios_of, NO_SLOWER)


# ----------------------------------------------------------------------------- against the peers
def against(peers, sluice="sluice"):
    """The ratios of the fastest of these to Sluice, in each round."""
    return lambda counted: results.ratios(counted, peers, sluice)


def title(point, of=""):
    return f"100 MiB fp32, density {100 * point.density:g}%, {point.ranks} ranks{of}"


def against_peers(settings, row, density, rows):
    """`rows`: contestant, thresholds and targets by ranks."""
    points = [Point(n, 100 * MIB, density) for n in settings.workers]
    ceilings = ["ceiling", "ceiling-ordinary"]
    takers = contestants.named("sluice", "sluice-ordinary", "sluice-packets", *ceilings,
                               *BEST_PEERS)
    done = settings.run(points, takers, row)
    for point in points:
        for name, thresholds, targets in rows:
            yield figure_of(title(point, f", best peer / {name}"), done[point],
                            against(BEST_PEERS, name), thresholds.get(point.ranks),
                            targets.get(point.ranks))
        for name, ceiling in zip(["sluice", "sluice-ordinary"], ceilings):
            yield figure_of(title(point, f", {ceiling} / {name}"), done[point],
                            against([ceiling], name), target=0.85)


def dense(settings):
    yield from against_peers(settings, "dense", 1.0, [
        ("sluice", {2: 1.5, 4: 2.8, 8: 2.8}, {}),
        ("sluice-ordinary", {2: 1.1, 4: 1.5, 8: 1.5}, {2: 2, 4: 2, 8: 2}),
        ("sluice-packets", {}, {})])


def density_10(settings):
    yield from against_peers(settings, "density-10", 0.1, [
        ("sluice", {2: 2, 4: 3.5, 8: 3}, {}),
        ("sluice-ordinary", {}, {}), ("sluice-packets", {}, {})])


def density_1(settings):
    yield from against_peers(settings, "density-1", 0.01, [
        ("sluice", {2: 2.5, 4: 4.5, 8: 4.5}, {}),
        ("sluice-ordinary", {}, {}), ("sluice-packets", {}, {})])


def bitmap(settings):
    point = Point(4, 100 * MIB, 0.01)
    takers = contestants.named("sluice-bitmap", *BEST_PEERS)
    done = settings.run([point], takers, "bitmap")
    yield figure_of(title(point, ", bitmap given, best peer / sluice-bitmap"),
                    done[point], against(BEST_PEERS, "sluice-bitmap"), 15, 30)


def sparse_peer(settings):
    points = [Point(n, 100 * MIB, density) for n in settings.workers
              for density in (0.1, 0.03, 0.01, 0.001)]
    takers = contestants.named("sluice", "sluice-ordinary", "sparse-mpi")
    done = settings.run(points, takers, "sparse-peer")
    for point in points:
        yield figure_of(title(point, ", sparse AllGather over MPI / sluice"), done[point],
                        against(["sparse-mpi"]), 0.95, 1.5)


def training(settings):
    points = {trainer.Training("dense_gradients", 4): (7, 10),
              trainer.Training("section_classifier", 4): (2, 4)}
    takers = [taker for taker in trainer.all_trainers() if taker.name != "sluice-top-k"]
    done = settings.run(points, takers, "training")
    for point, limits in points.items():
        yield figure_of(f"{point.example}, {point.ranks} ranks, DDP's exchange, Gloo / sluice",
                        done[point], against(["gloo"]), *limits)


def small(settings):
    """The smallest sum; in packets, compared with the last build that had no other way."""
    point = Point(2, 8)
    before = Former("before", former.make(former.BEFORE_REFERENCES))
    takers = [*contestants.named("sluice", "sluice-packets", "gloo"), before]
    done = settings.run([point], takers, "small")[point]
    yield figure_of("8 bytes, 2 ranks, Gloo / sluice", done, against(["gloo"]), 5, 20)
    yield figure_of("8 bytes, 2 ranks, before / sluice-packets", done,
                    against(["before"], "sluice-packets"), NO_SLOWER)


# ------------------------------------------------------------------------------- Sluice by itself
class SameCount(Sluice):
    """The same number of elements as for fp32, in another type."""

    def __init__(self, name):
        super().__init__(name, PACKETS, ["-d", name])

    @staticmethod
    def size(point):
        return point.bytes // 2


def half(settings):
    point = Point(2, 100 * MIB)
    takers = [Sluice("float", PACKETS, ["-d", "float"]), SameCount("half"), SameCount("bfloat16")]
    done = settings.run([point], takers, "half")
    for name in ("half", "bfloat16"):
        yield figure_of(f"25 Mi elements, dense, 2 ranks, in packets, fp32 / {name}", done[point],
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
    """Compared with a build that adds contributions in the order in which they come."""
    other = arrival_order.make()
    for ranks in (2, 8):
        point = Point(ranks, 100 * MIB)
        takers = [Sluice("rank order", PACKETS),
                  ArrivalOrder("arrival order", PACKETS, build=other)]
        done = settings.run([point], takers, "reproducible")
        what = f"100 MiB fp32 dense, {ranks} ranks, in packets, rank order / arrival order"
        yield figure_of(what, done[point],
                        lambda counted: results.ratios(counted, ["rank order"], "arrival order"),
                        1.1, 1.0, most=True)


ROWS = {
    "lane-1500": lane_1500, "lane-9000": lane_9000, "lane-before": lane_before, "lanes": lanes,
    "dense": dense, "density-10": density_10, "density-1": density_1, "bitmap": bitmap,
    "sparse-peer": sparse_peer, "training": training, "small": small, "half": half,
    "search": search, "reproducible": reproducible,
}
GROUPS = {
    "all": list(ROWS),
    "host": ["dense", "density-10", "density-1", "bitmap", "sparse-peer", "training", "small",
             "lane-before"],
}
