"""AllReduce by Gloo and Open MPI, dense or as a sparse AllGather, each rank on a host of its own:
see mpirun_on_hosts.py. The ranks are started anew for each."""
import os
import shlex
import sys

import checkout
import contestants
import programs
from sparse_peers import MPIRUN_ON_HOSTS

WIRE = 1538 / 1448  # for TCP with its time stamps
INDEX = 1 + 8 / 1024  # a block of 1 KiB and its index


class OnHosts(contestants.Family):
    def __init__(self, name, rate):
        super().__init__(name)
        self.rate = rate

    def launch(self, stage, number_of_ranks, path):
        programs.need("mpirun")
        self.start(stage, self.name, sys.executable, MPIRUN_ON_HOSTS, "--workers", number_of_ranks,
                   "--rate", self.rate, "--", *self.program(path))


class OpenMpi(OnHosts):
    def program(self, path):
        return [programs.compiled("peers/mpi.c"), path]


class Gloo(OnHosts):
    """mpirun starts its ranks on the hosts, although they do not use MPI."""

    def program(self, path):
        programs.need_modules("torch")
        program = os.path.join(programs.LIBRARY, "peers", "gloo.py")
        command = shlex.join([checkout.DEBIAN_PYTHON, program, path])
        return ["sh", "-c", "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
                " MASTER_ADDR=10.77.1.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=port0"
                f" exec {command}"]


class Peer(contestants.Peer):
    @property
    def is_sparse(self):
        return self.operation == "sparse"

    def bound_ms(self, point):
        """The least time that links need for what it does with such a tensor."""
        others = point.ranks - 1
        share = others * point.density * INDEX if self.is_sparse else 2 * others / point.ranks
        return share * (point.mib << 20) * WIRE * 8 / point.rate / 1000


def peers(rate):
    return [Peer("gloo", Gloo("gloo", rate), "allreduce"),
            Peer("openmpi", OpenMpi("openmpi", rate), "allreduce"),
            Peer("sparse-gloo", Gloo("gloo", rate), "sparse"),
            Peer("sparse-mpi", OpenMpi("openmpi", rate), "sparse")]
