"""The contestants: AllReduce of fp32 in place by Sluice and by its peers on this machine."""
import json
import os
import re
import statistics
import subprocess
from dataclasses import dataclass

import checkout
import mpirun
import processes
import programs
import ranks
from rounds import Contestant

MIB = 1 << 20
# Ordinary memory of sluice-perf asks for huge pages, so that of the peers does, too.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Others have none, whatever the machine's default is.
SMALL_PAGES = [checkout.DEBIAN_PYTHON, os.path.join(programs.LIBRARY, "small_pages.py")]
GATHERED_BYTES_MAX = 2 << 30  # what all ranks of a sparse AllReduce by AllGather may take together


@dataclass(frozen=True)
class Point:
    """What is measured: one AllReduce."""
    ranks: int
    bytes: int
    density: float = 1.0
    overlap: str = "random"

    def iterations(self):
        """Iterations of one contestant in one round: some tenths of a second."""
        return max(3, min(500, (1 << 27) // max(self.bytes, 1) // self.ranks))


def perf_row(path, command="sluice-perf"):
    """The only row of a file that sluice-perf has written, which is removed."""
    with open(path, encoding="utf-8") as file:
        row, = json.load(file)
    os.unlink(path)
    if row["wrong"]:  # None: not checked
        raise ranks.WrongSums(f"{row['wrong']} elements are wrong after: {command}")
    return row


@dataclass(frozen=True)
class Way:
    """How blocks get from rank to rank."""
    memory: str  # of the tensors, as a value of sluice-perf's flag
    on_host: bool  # the ranks sum among themselves; else packets go through an aggregator
    in_slots: bool = False  # ordinary tensors, which else are copied between processes

    @property
    def settings(self):
        return {"SLUICE_HOST_PROCESS_VM": 0} if self.in_slots else {}

    def require(self, log, who):
        """Raises WrongWay if daemons or ranks have logged another way of blocks."""
        said = set(re.findall(r": formed, .*", log))
        if bool(said) == self.on_host:
            raise WrongWay(f"{who} was to {'need no' if self.on_host else 'use an'} aggregator:"
                           f" {said or log}")
        if self.memory == "ordinary" and not self.in_slots and UNREACHED in log:
            raise WrongWay(f"{who} was to copy between processes: {log}")
        if self.memory == "shared" and NO_REGION in log:
            raise WrongWay(f"{who} had no tensors in shared memory: {log}")


class WrongWay(Exception):
    pass


UNREACHED = "other ranks of this host cannot access this process's memory"
NO_REGION = "tensors lie in ordinary memory"  # logged by a rank that had no region for them
HOST, HOST_ORDINARY, PACKETS = Way("shared", True), Way("ordinary", True), Way("ordinary", False)
HOST_SLOTS = Way("ordinary", True, in_slots=True)


class Sluice(Contestant):
    """sluice-perf on fresh ranks, and a fresh aggregator if there is one, each time; `perf` is more
    flags of it."""
    perf_build = None  # the one in use

    def __init__(self, name="sluice", way=HOST, perf=(), build=None):
        self.name, self.way, self.perf, self.build = name, way, perf, build

    def measure(self, point, seed, check):
        return {self.name: self.row(point, seed, check)["time_us_median"]}

    def perf_flags(self, _):
        return ["--in-place", "1", *self.perf]

    def cluster_flags(self, _):
        return ["--aggregators", 0] if self.way.on_host else []

    @staticmethod
    def size(point):
        """Bytes, as a value of sluice-perf's flags."""
        return point.bytes

    def row(self, point, seed, check=False, iterations=None):
        """sluice-perf's own."""
        path = self.stage.directory("row.json")
        command = self.command(point, seed, check, iterations or point.iterations(), path)
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True,
                              env=self.stage.environment(SLUICE_LOG="info", **self.way.settings))
        said = " ".join(command)
        if not os.path.exists(path):
            raise ConnectionError(f"status {done.returncode} of: {said}\n{done.stderr}")
        row = perf_row(path, said)
        if done.returncode != 0:
            raise ConnectionError(f"status {done.returncode} of: {said}\n{done.stderr}")
        self.way.require(done.stderr, said)
        return row

    def memory_flags(self):
        return ["--memory", self.way.memory]

    def command(self, point, seed, check, iterations, path):
        size = self.size(point)
        build = self.build or checkout.build
        words = [checkout.LOCAL_CLUSTER, "--build", build, "--workers", point.ranks,
                 "--quiet-ranks", "--show-aggregators", *self.cluster_flags(point), "--",
                 programs.built("sluice-perf", self.perf_build), *self.memory_flags(),
                 "-b", size, "-e", size, "--density", point.density, "--overlap", point.overlap,
                 "-n", iterations, "-w", 2, "-c", int(check), "--seed", seed, "--json", path,
                 *self.perf_flags(point)]
        return [str(word) for word in words]


class SparseOnly(Sluice):
    """For tensors with zeros: the caller's bitmap replaces the search."""

    def takes(self, point):
        return point.density < 1


class Former(Sluice):
    """The version before blocks could go by reference: see former.py."""

    def __init__(self, name, build):
        super().__init__(name, PACKETS, build=build)
        self.perf_build = build

    def memory_flags(self):
        return []  # it has only one kind


class Ceiling(Contestant):
    """The upper bound for the ranks of one machine: bench-host-sum, with tensors in shared
    memory, or with ordinary ones."""
    WARM_UP = 2  # runs

    def __init__(self, name, memory):
        self.name, self.memory = name, memory

    def takes(self, point):
        return point.overlap == "random" and point.bytes > 0 and point.bytes % MIB == 0

    def measure(self, point, seed, check):
        runs = self.WARM_UP + point.iterations()
        command = [programs.built("bench-host-sum"), point.ranks, point.bytes // MIB, runs,
                   point.density, self.memory]
        command = [str(word) for word in command]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:  # it checks every sum
            raise ranks.WrongSums(f"status {done.returncode} of {' '.join(command)}: {done.stderr}")
        milliseconds = [float(line) for line in done.stdout.split()]
        return {self.name: 1000 * statistics.median(milliseconds[self.WARM_UP:])}


class Peer:
    """One operation of a group of ranks; peers of one `family` share the group."""

    def __init__(self, name, family, operation):
        self.name, self.family, self.operation = name, family, operation

    def takes(self, point):
        """Whether it can measure that: gathering dense tensors takes too much memory."""
        gathered = point.ranks ** 2 * point.density * point.bytes
        return self.operation != "sparse" or gathered <= GATHERED_BYTES_MAX

    def start(self, stage, number_of_ranks):
        self.group = self.family.group(stage, number_of_ranks)

    def stop(self):
        self.family.stop()

    def measure(self, point, seed, check):
        line = ranks.request_line(self.operation, point, seed, point.iterations(), check)
        return {self.name: statistics.median(self.group.run(line))}


class Family:
    """Ranks that start together, when the first peer needs them, and end together. Their
    memory is in huge pages where the kernel has some, or in none."""

    def __init__(self, name, has_huge_pages=True):
        self.name = name if has_huge_pages else name + "-4k"
        self.has_huge_pages = has_huge_pages
        self.running = None
        self.started = []

    def group(self, stage, number_of_ranks):
        if self.running is None:
            self.running = ranks.RankGroup(stage.directory(f"{self.name}.sock"), number_of_ranks,
                                           lambda path: self.launch(stage, number_of_ranks, path))
        return self.running

    def start(self, stage, *command, **environment):
        name, *words = command
        if self.has_huge_pages:
            environment |= HUGE_PAGES
        else:
            words = [*SMALL_PAGES, *words]
        self.started.append(stage.start(name, *words, **environment))

    def stop(self):
        """Ends the ranks in order, so that Open MPI leaves no shared memory behind."""
        if self.running is not None:
            self.running.close()
            for process in self.started:
                process.wait()
        self.running, self.started = None, []


class OpenMpi(Family):
    def __init__(self, transport, has_huge_pages=True):
        super().__init__(f"mpi-{transport}", has_huge_pages)
        self.parameters = {"shm": mpirun.SHARED_MEMORY, "tcp": mpirun.TCP}[transport]

    def launch(self, stage, number_of_ranks, path):
        programs.need("mpirun")
        program = programs.compiled("peers/mpi.c")
        self.start(stage, self.name, *mpirun.command(stage.place, self.parameters, "-n",
                                                     number_of_ranks, program, path))


class Mpich(Family):
    """Over shared memory, the default on one machine."""

    def launch(self, stage, number_of_ranks, path):
        programs.need("mpiexec.mpich")
        program = programs.compiled("peers/mpi.c", ("mpicc.mpich",))
        self.start(stage, self.name, "mpiexec.mpich", "-n", number_of_ranks, program, path)


class Gloo(Family):
    """Over TCP on the loopback interface."""

    def launch(self, stage, number_of_ranks, path):
        programs.need_modules("torch")
        program = os.path.join(programs.LIBRARY, "peers", "gloo.py")
        port = processes.free_tcp_port()
        for rank in range(number_of_ranks):
            self.start(stage, f"gloo{rank}", checkout.DEBIAN_PYTHON, program, path,
                       RANK=rank, WORLD_SIZE=number_of_ranks, GLOO_SOCKET_IFNAME="lo",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


def of_sluice():
    """By itself: with tensors in shared memory, with the same and a bitmap, with ordinary tensors,
    and through an aggregator."""
    return [
        Sluice(),
        SparseOnly("sluice-bitmap", perf=["--bitmap"]),
        Sluice("sluice-ordinary", HOST_ORDINARY),
        Sluice("sluice-slots", HOST_SLOTS),
        Sluice("sluice-packets", PACKETS),
    ]


def ceilings():
    return [Ceiling("ceiling", "shared"), Ceiling("ceiling-ordinary", "ordinary")]


def all_contestants():
    """Sluice first."""
    shm, tcp, gloo, mpich = OpenMpi("shm"), OpenMpi("tcp"), Gloo("gloo"), Mpich("mpich")
    return [
        *of_sluice(),
        *ceilings(),
        Peer("openmpi", shm, "allreduce"),
        Peer("openmpi-4k", OpenMpi("shm", False), "allreduce"),
        Peer("mpich", mpich, "allreduce"),
        Peer("mpich-4k", Mpich("mpich", False), "allreduce"),
        Peer("gloo", gloo, "allreduce"),
        Peer("gloo-4k", Gloo("gloo", False), "allreduce"),
        Peer("openmpi-tcp", tcp, "allreduce"),
        Peer("ring", shm, "ring"),
        Peer("sparse-mpi", shm, "sparse"),
        Peer("sparse-gloo", gloo, "sparse"),
    ]


def named(*names):
    """The contestants in that order."""
    by_name = {contestant.name: contestant for contestant in all_contestants()}
    return [by_name[name] for name in names]
