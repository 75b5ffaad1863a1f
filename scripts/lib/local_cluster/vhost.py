"""vhost-user on this machine: one directory of sockets per aggregator, no privilege."""
import os

import processes

DEFAULT_MTU = 9000


def host_name(rank, ranks_per_host):
    """SLUICE_HOST. Other clusters of this machine may have the same job."""
    return f"cluster-{os.getpid()}-{rank // ranks_per_host}"


class Vhost:
    def __init__(self, options, directory):
        self.mtu = options.mtu or DEFAULT_MTU
        self.ranks_per_host = options.ranks_per_host
        self.directories = [os.path.join(directory, f"a{m}") for m in range(options.aggregators)]
        for path in self.directories:
            os.mkdir(path, 0o700)
        self.ranks_meet_at = ("127.0.0.1", str(processes.free_tcp_port()))

    def aggregators(self):
        """SLUICE_AGGREGATORS: one address per shard."""
        return ",".join(f"vhost:{path}" for path in self.directories)

    def aggregator_arguments(self, shard):
        return ["--vhost-dir", self.directories[shard], "--mtu", str(self.mtu)]

    def aggregator_namespace(self, shard):
        return None

    def worker_environment(self, rank):
        return {"SLUICE_MTU": str(self.mtu), "SLUICE_HOST": host_name(rank, self.ranks_per_host)}

    def worker_namespace(self, rank):
        return None
