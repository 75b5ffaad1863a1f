"""Who takes part: AllReduce of fp32 in place by Sluice and by its peers on this machine."""
import json
import os
import statistics
import subprocess
from dataclasses import dataclass

import checkout
import mpirun
import processes
import programs
import ranks
from rounds import Contestant

GATHERED_BYTES_MAX = 2 << 30  # what all ranks of a sparse AllReduce by AllGather may take together


@dataclass(frozen=True)
class Point:
    """What is measured: one AllReduce."""
    ranks: int
    bytes: int
    density: float = 1.0
    overlap: str = "random"

    def iterations(self):
        """Of one contestant in one round: some tenths of a second."""
        return max(3, min(500, (1 << 27) // max(self.bytes, 1) // self.ranks))


def perf_row(path, command="sluice-perf"):
    """The only row of a file that sluice-perf has written, which is removed."""
    with open(path, encoding="utf-8") as file:
        row, = json.load(file)
    os.unlink(path)
    if row["wrong"]:  # None: not checked
        raise ranks.WrongSums(f"{row['wrong']} elements are wrong after: {command}")
    return row


class Sluice(Contestant):
    """sluice-perf on fresh ranks and a fresh aggregator each time; `perf` is more flags of it."""

    def __init__(self, name="sluice", perf=(), build=None):
        self.name, self.perf, self.build = name, perf, build

    def measure(self, point, seed, check):
        return {self.name: self.row(point, seed, check)["time_us_median"]}

    def perf_flags(self, _):
        return ["--in-place", "1", *self.perf]

    def cluster_flags(self, _):
        return []

    @staticmethod
    def size(point):
        """Bytes, as sluice-perf is told."""
        return point.bytes

    def row(self, point, seed, check=False, iterations=None):
        """sluice-perf's own."""
        path = self.stage.directory("row.json")
        command = self.command(point, seed, check, iterations or point.iterations(), path)
        status = subprocess.run(command, check=False, env=self.stage.environment()).returncode
        said = " ".join(command)
        row = perf_row(path, said)
        if status != 0:
            raise ConnectionError(f"status {status} of: {said}")
        return row

    def command(self, point, seed, check, iterations, path):
        size = self.size(point)
        words = [checkout.LOCAL_CLUSTER, "--build", self.build or checkout.build, "--workers",
                 point.ranks, "--quiet-ranks", *self.cluster_flags(point), "--",
                 programs.built("sluice-perf"), "-b", size, "-e", size, "--density",
                 point.density, "--overlap", point.overlap, "-n", iterations, "-w", 2, "-c",
                 int(check), "--seed", seed, "--json", path, *self.perf_flags(point)]
        return [str(word) for word in words]


class Peer:
    """One operation of a group of ranks; peers of one `family` share the group."""

    def __init__(self, name, family, operation):
        self.name, self.family, self.operation = name, family, operation

    def takes(self, point):
        """Whether it can be asked that: gathering dense tensors takes too much memory."""
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
    """Ranks that are started together, when the first peer needs them, and end together."""

    def __init__(self, name):
        self.name = name
        self.running = None
        self.started = []

    def group(self, stage, number_of_ranks):
        if self.running is None:
            self.running = ranks.RankGroup(stage.directory(f"{self.name}.sock"), number_of_ranks,
                                           lambda path: self.launch(stage, number_of_ranks, path))
        return self.running

    def start(self, stage, *command, **environment):
        self.started.append(stage.start(*command, **environment))

    def stop(self):
        """Ends the ranks in order, so that Open MPI leaves no shared memory behind."""
        if self.running is not None:
            self.running.close()
            for process in self.started:
                process.wait()
        self.running, self.started = None, []


class OpenMpi(Family):
    def __init__(self, transport):
        super().__init__(f"mpi-{transport}")
        self.parameters = {"shm": mpirun.SHARED_MEMORY, "tcp": mpirun.TCP}[transport]

    def launch(self, stage, number_of_ranks, path):
        programs.need("mpirun")
        program = programs.compiled("peers/mpi.c")
        self.start(stage, self.name, *mpirun.command(stage.place, self.parameters, "-n",
                                                     number_of_ranks, program, path))


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


def all_contestants():
    """Sluice first."""
    shm, tcp, gloo = OpenMpi("shm"), OpenMpi("tcp"), Gloo("gloo")
    return [
        Sluice(),
        Peer("openmpi", shm, "allreduce"),
        Peer("gloo", gloo, "allreduce"),
        Peer("openmpi-tcp", tcp, "allreduce"),
        Peer("ring", shm, "ring"),
        Peer("sparse-mpi", shm, "sparse"),
        Peer("sparse-gloo", gloo, "sparse"),
    ]
