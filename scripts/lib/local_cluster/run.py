"""The order: aggregators start and become ready, ranks run, everything stops."""
import collections
import os
import re
import sys

import checkout
import processes

from .af_packet import AfPacket
from .af_xdp import AfXdp
from .children import Children, Interrupted
from .vhost import Vhost

TRANSPORTS = {"vhost": Vhost, "af_packet": AfPacket, "af_xdp": AfXdp}
READY_SECONDS = 30
STOP_SECONDS = 5
LOG_LINES_KEPT = 200
MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")  # where PyTorch's ranks meet
READY = re.compile(processes.READY.encode())


class Failure(Exception):
    """A failure: a text for a person, and the exit status."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Aggregator:
    """A daemon's log: kept for when it fails, shown at once when asked, watched for "ready"."""

    def __init__(self, shard, show):
        self.name = f"aggregator {shard}"
        self.show = show
        self.log = collections.deque(maxlen=LOG_LINES_KEPT)
        self.ready = False
        self.child = None

    def on_line(self, stream, line):
        self.ready = self.ready or bool(READY.search(line))
        self.log.append(line)
        if self.show:
            write(sys.stderr, self.name, line)

    def show_log(self):
        if not self.show:
            for line in self.log:
                write(sys.stderr, self.name, line)


class Cluster:
    def __init__(self, options, directory):
        self.options = options
        self.children = Children()
        # DPDK keeps its run-time files under one of these: with the rest, then, and not beyond it.
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=directory, RUNTIME_DIRECTORY=directory)
        self.transport = TRANSPORTS[options.transport](options, directory)
        self.aggregators = []
        self.ranks = []
        self.lossy_ranks = set()  # those that have reported lost packet buffers

    def start_aggregators(self):
        for shard in range(self.options.aggregators):
            aggregator = Aggregator(shard, self.options.show_aggregators)
            command = [self.options.aggregator, *self.transport.aggregator_arguments(shard),
                       "--shard", str(shard), "--shards", str(self.options.aggregators),
                       *self.options.aggregator_arg]
            aggregator.child = self.children.start(
                aggregator.name, command, self.environment, aggregator.on_line,
                self.transport.aggregator_namespace(shard))
            self.aggregators.append(aggregator)
        self.children.serve(
            lambda: all(a.ready for a in self.aggregators) or self.lost_aggregator(),
            READY_SECONDS)
        self.check_aggregators()
        for aggregator in self.aggregators:
            if not aggregator.ready:
                aggregator.show_log()
                raise Failure(f"{aggregator.name} was not ready within {READY_SECONDS} s", 1)

    def start_ranks(self):
        for_all = {"SLUICE_WORLD_SIZE": str(self.options.workers),
                   "SLUICE_AGGREGATORS": self.transport.aggregators(),
                   **checkout.python_environment(), **self.launcher_environment()}
        for rank in range(self.options.workers):
            environment = dict(
                self.environment, **for_all, **self.transport.worker_environment(rank),
                SLUICE_RANK=str(rank), RANK=str(rank), LOCAL_RANK=str(rank),
                SLUICE_LOCAL_WORLD_SIZE=str(self.ranks_of_host(rank)))
            self.ranks.append(self.children.start(
                f"rank {rank}", self.options.command, environment, self.show_rank(rank),
                self.transport.worker_namespace(rank)))

    def ranks_of_host(self, rank):
        per_host = self.options.ranks_per_host
        first = rank // per_host * per_host
        return min(per_host, self.options.workers - first)

    def launcher_environment(self):
        """As torchrun sets it, for programs of PyTorch. Those of a launcher around us must not come
        through."""
        workers = str(self.options.workers)
        variables = {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
        for name in MEETING_PLACE:
            self.environment.pop(name, None)
        if self.transport.ranks_meet_at:
            variables |= zip(MEETING_PLACE, self.transport.ranks_meet_at)
            # Debian's PyTorch 2 is built without libuv, on which its store insists otherwise.
            variables["USE_LIBUV"] = self.environment.get("USE_LIBUV", "0")
        return variables

    def show_rank(self, rank):
        only, quiet = self.options.only_rank, self.options.quiet_ranks

        def on_line(stream, line):
            if processes.LOST_BUFFERS.encode() in line:
                self.lossy_ranks.add(rank)
            if stream == "stderr":
                write(sys.stderr, rank, line)
            elif not quiet and only in (None, rank):
                write(sys.stdout, None if only == rank else rank, line)

        return on_line

    def wait_for_ranks(self):
        """Returns when all have ended with 0; raises the first Failure, after a grace period."""
        self.children.serve(
            lambda: self.ranks_ended() or self.failed_rank() or self.lost_aggregator())
        failed = self.failed_rank()
        if failed:
            message = f"{failed.name} ended with status {failed.poll()}"
            self.children.serve(self.ranks_ended, self.options.grace)
            raise Failure(message, failed.poll())
        if self.lost_aggregator():
            self.children.serve(self.ranks_ended, self.options.grace)
        self.check_aggregators()

    def stop(self):
        """Stops what still runs; raises Failure when an aggregator did not end well, or a rank has
        lost packet buffers, which its status does not show."""
        self.children.stop(self.ranks, STOP_SECONDS)
        in_time = self.children.stop([a.child for a in self.aggregators], STOP_SECONDS)
        for aggregator in self.aggregators:
            if aggregator.child.poll() != 0:
                aggregator.show_log()
                end = f"with status {aggregator.child.poll()}" if in_time else "not when asked to"
                raise Failure(f"{aggregator.name} ended {end}", 1)
        if self.lossy_ranks:
            raise Failure(f"rank {min(self.lossy_ranks)} has lost packet buffers", 1)

    def ranks_ended(self):
        return all(rank.poll() is not None for rank in self.ranks)

    def failed_rank(self):
        return next((rank for rank in self.ranks if rank.poll()), None)

    def lost_aggregator(self):
        return next((a for a in self.aggregators if a.child.poll() is not None), None)

    def check_aggregators(self):
        lost = self.lost_aggregator()
        if lost:
            lost.show_log()
            raise Failure(f"{lost.name} ended early, with status {lost.child.poll()}", 1)


def run(options, directory):
    """The exit status."""
    cluster = None
    status = 0
    try:
        cluster = Cluster(options, directory)
        cluster.start_aggregators()
        cluster.start_ranks()
        cluster.wait_for_ranks()
    except Interrupted as end:
        status = 128 + end.signum
    except BrokenPipeError:
        status = 141
    except (Failure, OSError) as end:
        complain(end)
        status = getattr(end, "status", 1)
    try:
        if cluster:
            cluster.stop()
    except BrokenPipeError:
        status = status or 141
    except Failure as end:
        if status == 0:  # otherwise it follows from a failure that was reported already
            complain(end)
            status = end.status
    return status


def complain(error):
    print(f"local-cluster: {error}", file=sys.stderr, flush=True)


def write(file, name, line):
    prefix = b"" if name is None else b"[%s] " % str(name).encode()
    file.buffer.write(prefix + line + b"\n")
    file.buffer.flush()
