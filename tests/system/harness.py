"""What the system tests share. Run a test file as `FILE BUILD_DIRECTORY [--two-lanes]
[unittest arguments]`. With --two-lanes each aggregator has two lanes."""
import contextlib
import os
import re
import signal
import socket
import struct
import sys
import types
import unittest

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts", "lib"))

import checkout  # noqa: E402
import linux  # noqa: E402
import recorded  # noqa: E402
from checkout import (  # noqa: E402, F401
    DEBIAN_PYTHON, LOCAL_CLUSTER, PYTHON_WITH_NUMPY, ROOT, TORCH_CONTRIB, program,
    python_environment, torch_package, torch_version, torchrun_works)
from local_cluster import af_packet, af_xdp  # noqa: E402
from processes import (  # noqa: E402, F401
    AT_ONCE, LOST_BUFFERS, TIME_LIMIT, READY, Deadline, Process, Stage, free_tcp_port, wait_until)

SKIPPED = 77
# For an aggregator, unless a flag says otherwise, as other work may keep a rank silent for seconds.
# A rank waits longer for an earlier generation of its job to end.
LONG_LIVENESS = {"SLUICE_AGGREGATOR_LIVENESS_TIMEOUT_MS": 20_000}
NO_TORCHRUN = "this PyTorch's torchrun starts nothing: built without libuv"
NEEDS_ROOT = "needs root: network namespaces, raw sockets, other users"
build = None
two_lanes = False
# The line of a rank that waits for others; on a busy machine it may occur once in any test.
WAITS = re.compile(r"^.*: (?:the join has|ops pending: \d+; they have) waited 3 s for .*\n", re.M)


def become_nobody():
    """For before_exec, as root: drops all privileges."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def thread_of(process, name):
    """The id of its thread of this name; None if it does not run or has none."""
    tasks = f"/proc/{process.popen.pid}/task"
    try:
        for task in os.listdir(tasks):
            with open(os.path.join(tasks, task, "comm"), encoding="ascii") as file:
                if file.read().strip() == name:
                    return int(task)
    except OSError:  # a thread, or all of it, has ended
        pass
    return None


def has_dpdk(process):
    """Its thread for interrupts has another name since DPDK 23.11."""
    return any(thread_of(process, name) for name in ("eal-intr-thread", "dpdk-intr"))


def not_passed(result):
    return len(result.failures) + len(result.errors), len(result.skipped)


@contextlib.contextmanager
def stopped(process):
    """The process does not run meanwhile."""
    process.send(signal.SIGSTOP)
    wait_until(lambda: linux.state_of(process.popen.pid) == "T", "it has stopped")
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


def endless_socket():
    """A TCP socket that accepts no more data, and its other end: a process that writes to it, or
    closes it last, waits until the other end reads or closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        full = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10_000))
    full.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            full.send(bytes(65536))
    full.setblocking(True)
    return full.detach(), other


def errors_of(rank):
    """Its stderr, without the lines about waiting for others."""
    return WAITS.sub("", rank.err)


class SystemTest(Stage, unittest.TestCase):
    """Each test has a stage of its own; one that fails prints the output of every process. Its
    `said_by_others` is for the output of programs that it runs outside of the stage."""

    def run(self, result=None):
        with self:
            self.addCleanup(self.check_buffers)
            self.said_by_others = []
            problems = not_passed(result)
            super().run(result)
            self.said = "\n".join([p.out + p.err for p in self.processes] + self.said_by_others)
            if len(result.failures) + len(result.errors) > problems[0]:
                for process in self.processes:
                    print(process.report(), file=sys.stderr)
            elif not_passed(result) == problems and not two_lanes:
                recorded.keep(self)
        return result

    def environment(self, **settings):
        """Ranks with aggregators sum through these, unless a test is about hosts."""
        level = {"SLUICE_HOST_LEVEL": 0} if settings.get("SLUICE_AGGREGATORS") else {}
        return super().environment(**{**level, **settings})

    def start_daemon(self, *flags, **settings):
        """With the same number of lanes on every machine, unless a flag says otherwise."""
        settings.setdefault("SLUICE_AGGREGATOR_LANES", 2 if two_lanes else 1)
        return super().start_daemon(*flags, **{**LONG_LIVENESS, **settings})

    def check_buffers(self):
        """Checks that no process that ended in order has lost packet buffers. Daemons that still
        run end now."""
        for process in self.processes:
            if not process.is_daemon:
                process.kill()
        for process in self.processes:
            if process.is_daemon and process.is_running():
                process.send(signal.SIGCONT)
                self.ends_on_signal(process)
        for process in self.processes:
            self.assertNotIn(LOST_BUFFERS, process.out + process.err, process.name)

    def ends_with(self, process, status, *sayings):
        """Checks that it ends with this status, and that its last line on stderr has all texts."""
        self.assertEqual(process.wait(), status, f"{process.name}'s exit status")
        lines = process.err.strip().splitlines()
        last = lines[-1] if lines else ""
        for saying in sayings:
            self.assertRegex(last, saying, process.name)

    def refuses(self, process, status, *sayings):
        """Checks that it ends with this status and a single line, which has all texts. (A
        daemon may have logged its build before, and a rank for whom it waits.)"""
        self.ends_with(process, status, *sayings)
        said = [line for line in errors_of(process).strip().splitlines()
                if not re.search("sluice-aggregator: version ", line)]
        self.assertEqual(len(said), 1, process.err)
        self.assertEqual(process.out, "")

    def ends_on_signal(self, daemon, signum=signal.SIGTERM):
        """Checks that the daemon ends with 0 and logs its counters."""
        daemon.send(signum)
        self.assertEqual(daemon.wait(), 0, daemon.name)

    def counter(self, daemon, name, lane=None):
        """A counter in the summary at exit, perhaps of one lane; a counter that never moved is not
        in it."""
        of = "" if lane is None else rf"lane {lane} \w+ "
        found = re.search(rf"{of}at exit: .*\b{name} (\d+)", daemon.err)
        return int(found.group(1)) if found else 0


class NetworkTest(SystemTest):
    """Machines with af_packet ports behind a switch, each a network namespace; needs root."""

    def make_network(self, workers, aggregators, mtu=None, ranks_per_host=1):
        home = af_packet.own_network_namespace()
        self.addCleanup(os.close, home)
        self.addCleanup(linux.enter_network_namespace, home)
        options = types.SimpleNamespace(mtu=mtu, rate=None, queue=None,
                                        ranks_per_host=ranks_per_host,
                                        aggregators=aggregators, workers=workers)
        self.network = af_packet.AfPacket(options, self.place)

    def start_aggregator(self, host, *flags, address=None, **settings):
        """Starts it on the machine with that number; `address` may be that of another machine."""
        address = host if address is None else address
        daemon = self.start(f"a{host}", program("sluice-aggregator"),
                            *self.network.aggregator_arguments(address), *flags,
                            **{**LONG_LIVENESS, **settings},
                            before_exec=self._on(self.network.aggregator_namespace(host)))
        daemon.address = af_packet.aggregator_ip(address)
        daemon.wait_to_say(READY)
        return daemon

    def start_rank(self, rank, ranks, daemon, *command, **settings):
        settings = {**self.network.worker_environment(rank), **settings}
        return super().start_rank(rank, ranks, daemon, *command, **settings,
                                  before_exec=self._on(self.network.worker_namespace(rank)))

    @staticmethod
    def _on(namespace):
        return lambda: linux.enter_network_namespace(namespace)


def main():
    """Runs the tests of the calling file, and prints a line "skipped: WHICH: WHY" for each that is
    not run, which scripts/test counts; status 77 if every one was skipped."""
    global build, two_lanes
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} BUILD_DIRECTORY [--two-lanes] [unittest arguments]")
    checkout.use_build(sys.argv.pop(1))
    build = checkout.build
    if "--two-lanes" in sys.argv:
        sys.argv.remove("--two-lanes")
        two_lanes = True
    result = unittest.main(exit=False, verbosity=2).result
    for test, reason in result.skipped:
        print(f"skipped: {test.id().removeprefix('__main__.')}: {reason}")
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.testsRun == len(result.skipped) else 0)
