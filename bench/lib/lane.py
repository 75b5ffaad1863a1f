"""What one core in the aggregator's place does over vhost-user, with another core as its peer: the
lane under sluice-pktgen, and plain forwarding by testpmd. Values are frames handled (received and
sent) and bits of payload in a second."""
import json
import os
import subprocess
from dataclasses import dataclass

import programs
import testpmd
from ranks import WrongSums
from rounds import Contestant

CORES = sorted(os.sched_getaffinity(0))[:2]  # the lane's, the peer's
IP_AND_UDP_BYTES = 28
SECONDS = 1
WORKERS = 8
STREAMS = [8, 16, 64]  # of the lane: as many windows


@dataclass(frozen=True)
class Frames:
    """What is measured: dense traffic of 8 workers, in frames of at most that many bytes (of IP).
    testpmd fills them; the lane's hold whole blocks, which leaves 5% of a short one empty, and 8%
    of one of 9000 bytes."""
    frame_bytes: int
    ranks: int = WORKERS

    def block_elements(self):
        """The largest block of fp32 that fits into a short frame."""
        return 328 if self.frame_bytes < 2000 else 256

    def windows(self):
        """Frames in flight for testpmd: few fit into the caches, many keep both cores busy."""
        return [32, 64, 128, 256] if self.frame_bytes < 2000 else [32, 64, 96, 224]


def frames_name(who):
    return f"{who}, frames/s"


def payload_name(who):
    return f"{who}, payload bit/s"


class Lane(Contestant):
    """A fresh daemon and runs of sluice-pktgen, with the best window, as for macswap."""

    def __init__(self, name="lane", build=None):
        self.name, self.build = name, build

    def measure(self, point, seed, _):
        with programs.of_build(self.build):
            return self.measure_this_build(point, seed)

    def measure_this_build(self, point, seed):
        daemon = self.stage.start_daemon("--mtu", 9000,
                                         before_exec=lambda: os.sched_setaffinity(0, CORES[:1]))
        try:
            reports = [self.pktgen(point, "--aggregator", daemon.address, "--seed", seed,
                                   "--cpu", CORES[1], "--streams", streams)
                       for streams in STREAMS]
        finally:
            self.stage.forget([daemon])
        best = max(reports, key=lambda report: report["measured"]["handled_packets_per_s"])
        traffic = [best["measured"][way] for way in ("to_aggregator", "from_aggregator")]
        return {frames_name(self.name): sum(way["packets_per_s"] for way in traffic),
                payload_name(self.name): sum(way["payload_bits_per_s"] for way in traffic)}

    def cycles(self, point):
        """Cycles per packet in each stage, of a lane alone behind a port in memory."""
        report = self.pktgen(point, "--in-memory", "--cpu", CORES[0])
        return report["measured"]["lane"]["stages"]

    def pktgen(self, point, *flags):
        return Pktgen(self.stage, point, *flags).wait()


class Pktgen:
    """A run of sluice-pktgen; wait() returns its report."""

    def __init__(self, stage, point, *flags, name="pktgen"):
        self.path = stage.directory(name + ".json")
        command = [programs.built("sluice-pktgen"), "--workers", WORKERS, "--frame",
                   point.frame_bytes, "--block-elements", point.block_elements(), "--duration",
                   SECONDS, "--json", self.path, *flags]
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                        env=stage.environment())

    def wait(self):
        if self.process.wait() != 0:
            raise subprocess.CalledProcessError(self.process.returncode, self.command)
        with open(self.path, encoding="utf-8") as file:
            report = json.load(file)
        if not report["right"]:
            raise WrongSums(" ".join(self.command))
        return report


class LanesInMemory(Contestant):
    """Lanes behind ports in memory, each on a core with the generator of its share: those of one
    daemon, or independent daemons of one lane each."""
    STREAMS_OF_LANE = 64

    def __init__(self, name, processes):
        self.name, self.processes = name, processes

    def measure(self, point, seed, _):
        lanes = len(CORES) // self.processes
        runs = [Pktgen(self.stage, point, "--in-memory", "--lanes", lanes, "--seed", seed,
                       "--streams", lanes * self.STREAMS_OF_LANE,
                       "--cpu", ",".join(str(core) for core in cores), name=f"pktgen-{i}")
                for i, cores in enumerate([CORES] if self.processes == 1
                                          else [[core] for core in CORES])]
        reports = [run.wait() for run in runs]
        return {frames_name(self.name): sum(report["measured"]["handled_packets_per_s"]
                                            for report in reports)}


class Macswap(Contestant):
    """testpmd with every window of a point."""
    name = "macswap"

    def measure(self, point, _, __):
        values = {}
        for window in point.windows():
            frames = sum(testpmd.macswap(self.stage, point.frame_bytes, window, SECONDS, CORES))
            who = window_name(window)
            values[frames_name(who)] = frames
            values[payload_name(who)] = 8 * frames * (point.frame_bytes - IP_AND_UDP_BYTES)
        return values


def window_name(window):
    return f"macswap of {window} in flight"


def ratios(rounds, name):
    """Ratios of the lane to macswap at its best window, in each round; `name` is frames_name or
    payload_name."""
    return [r.values[name("lane")] / max(r.values[name(window_name(window))]
                                         for window in r.point.windows())
            for r in rounds if name("lane") in r.values]
