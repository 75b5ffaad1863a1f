"""Started processes, such as daemons and ranks: waits have deadlines, and all processes are ended.

Every wait has a generous bound and ends as soon as its condition holds. Time in which this
process did not run either is not counted: a virtual machine may stand still for a minute.
"""
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import checkout
import linux

TIME_LIMIT = 60  # seconds; other work may keep the machine busy
LONGEST_PAUSE = 1  # seconds between two checks that count; more is a pause of the machine
AT_ONCE = 10  # seconds; for what takes less than one, unless a time-out must pass
# A daemon's line when ranks may join, in text or JSON.
READY = r'sluice-aggregator(: |","message":")ready\b'
# The line of daemon and library at the end of a buffer pool that is not full.
LOST_BUFFERS = "were not returned"
LONGEST_BASE = 40  # of 107 bytes for a socket's path; the rest is enough for daemon and ranks


def make_directory(prefix="sluice-"):
    """A fresh directory, mode 0700, at a path that is short enough for sockets."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK | os.X_OK) or len(base) > LONGEST_BASE:
        base = "/tmp"
    return tempfile.mkdtemp(prefix=prefix, dir=base)


class Deadline:
    """So many seconds from now, for a loop that polls."""

    def __init__(self, seconds=TIME_LIMIT):
        self.left = seconds
        self.looked = time.monotonic()

    def is_over(self):
        now = time.monotonic()
        self.left -= min(now - self.looked, LONGEST_PAUSE)
        self.looked = now
        return self.left <= 0


def wait_until(holds, what, seconds=TIME_LIMIT):
    """Waits until `holds()`; `what` describes the condition in the error."""
    deadline = Deadline(seconds)
    while not holds():
        if deadline.is_over():
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def free_tcp_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def spawn(command, environment, out, err, before_exec=None):
    """In a process group of its own. It dies with this process."""
    parent = os.getpid()

    def prepare():
        linux.die_with_parent(parent, signal.SIGKILL)
        if before_exec:
            before_exec()

    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                            stderr=err, process_group=0, preexec_fn=prepare)


class Process:
    """A started program with its output in files; `popen.pid` is its own process group.

    All are of one session: see docs/mpi.md, "What to know".
    """

    def __init__(self, name, command, environment, directory, before_exec=None,
                 spawn=spawn):
        self.name = name
        self.is_daemon = os.path.basename(command[0]) == "sluice-aggregator"
        self.paths = {what: os.path.join(directory, f"{name}.{what}") for what in ("out", "err")}
        with open(self.paths["out"], "wb") as out, open(self.paths["err"], "wb") as err:
            self.popen = spawn(command, environment, out, err, before_exec)

    @property
    def out(self):
        return self._read("out")

    @property
    def err(self):
        return self._read("err")

    def _read(self, what):
        with open(self.paths[what], encoding="utf-8", errors="replace") as file:
            return file.read()

    def is_running(self):
        return self.popen.poll() is None

    def send(self, signum):
        self.popen.send_signal(signum)

    def wait(self, seconds=TIME_LIMIT):
        """Waits for its exit status; negative: the signal that ended it."""
        deadline = Deadline(seconds)
        while self.is_running():
            if deadline.is_over():
                raise AssertionError(f"{self.name} still runs after {seconds} s")
            time.sleep(0.02)
        return self.popen.returncode

    def wait_to_say(self, pattern, seconds=TIME_LIMIT):
        """Waits until its output or its errors match; returns the match."""
        deadline = Deadline(seconds)
        while True:
            ended = not self.is_running()  # before the check, which then is the last one
            found = re.search(pattern, self.err) or re.search(pattern, self.out)
            if found:
                return found
            if ended or deadline.is_over():
                how = "ended without saying" if ended else "does not say"
                raise AssertionError(f"{self.name} {how} {pattern!r}")
            time.sleep(0.02)

    def kill(self):
        """Ends it and everything that it has started, for clean-up."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def report(self):
        status = self.popen.poll()
        state = "running" if status is None else f"status {status}"
        return f"--- {self.name} ({state})\n{self.out}{self.err}"


class Stage:
    """A directory and the processes started in it; all ends with the `with` statement."""
    spawn = staticmethod(spawn)

    def __enter__(self):
        self.place = make_directory("st-")
        self.processes = []
        self.numbers = itertools.count()
        return self

    def __exit__(self, *failure):
        for process in self.processes:
            process.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def environment(self, **settings):
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        own.update(XDG_RUNTIME_DIR=self.place, RUNTIME_DIRECTORY=self.place)
        own.update({name: str(value) for name, value in settings.items()})
        return own

    def start(self, name, *command, before_exec=None, **settings):
        """`settings` are environment variables; those of this test's own process named SLUICE_*
        are not passed on."""
        name = f"{next(self.numbers)}-{name}"
        process = Process(name, [str(word) for word in command], self.environment(**settings),
                          self.place, before_exec, self.spawn)
        self.processes.append(process)
        return process

    def forget(self, ended):
        """Keeps the directory of a long run small: their output is removed, too."""
        for process in ended:
            process.kill()
            self.processes.remove(process)
            for path in process.paths.values():
                os.unlink(path)

    def directory(self, name="a0"):
        return os.path.join(self.place, name)

    def start_daemon(self, *flags, name="a0", **settings):
        """A ready aggregator behind the vhost directory `name`."""
        daemon = self.start(name, checkout.program("sluice-aggregator"),
                            "--vhost-dir", self.directory(name), *flags, **settings)
        daemon.address = self.address(name)
        daemon.wait_to_say(READY)
        return daemon

    def start_shards(self, shards, *flags):
        return [self.start_daemon("--shard", s, "--shards", shards, *flags, name=f"a{s}")
                for s in range(shards)]

    def address(self, *names):
        """The addresses of a shard: the first daemon's, and those of its standbys."""
        return "|".join("vhost:" + self.directory(name) for name in names)

    def start_rank(self, rank, ranks, daemon, *command, before_exec=None, **settings):
        """`daemon` is a Process of start_daemon, one per shard, or an address."""
        daemons = daemon if isinstance(daemon, list) else [daemon]
        settings.setdefault("SLUICE_AGGREGATORS",
                            ",".join(getattr(d, "address", d) for d in daemons))
        settings.setdefault("SLUICE_AGGREGATOR_TIMEOUT_MS", TIME_LIMIT * 1000)  # a start takes long
        settings.setdefault("SLUICE_RANK", rank)
        settings.setdefault("SLUICE_WORLD_SIZE", ranks)
        name = f"rank{settings['SLUICE_RANK']}"
        return self.start(name, checkout.program(command[0]), *command[1:],
                          before_exec=before_exec, **settings)

    def start_cluster(self, *arguments, **settings):
        """scripts/local-cluster, which starts its own daemons and ranks."""
        return self.start("cluster", checkout.LOCAL_CLUSTER, "--build", checkout.build, *arguments,
                          **settings)

    def start_job(self, ranks, daemon, *command, **settings):
        return [self.start_rank(r, ranks, daemon, *command, **settings) for r in range(ranks)]

    def start_steady_job(self, ranks, daemon, elements=20_000, in_flight=1, **settings):
        """A job that checks its sums until end_steady_job; under way when this returns."""
        job = self.launch_steady_job(ranks, daemon, elements, in_flight, **settings)
        for rank in job:
            rank.wait_to_say("under way")
        return job

    def launch_steady_job(self, ranks, daemon, elements=20_000, in_flight=1, **settings):
        """The same, without waiting."""
        settings.setdefault("SLUICE_JOB", 1000 + next(self.numbers))
        stop = os.path.join(self.place, f"stop-{next(self.numbers)}")
        job = self.start_job(ranks, daemon, "steady_job", stop, elements, in_flight, **settings)
        for rank in job:
            rank.stop_file = stop
        return job

    def end_steady_job(self, job):
        """Checks that it still runs, and that every sum up to now is right."""
        with open(job[0].stop_file, "w", encoding="ascii"):
            pass
        self.all_end_well(job)

    def start_joiner(self, rank, ranks, daemon, **settings):
        """A rank that joins job 0 and would go on for ever."""
        settings.setdefault("SLUICE_JOIN_TIMEOUT_MS", TIME_LIMIT * 1000)
        return self.start_rank(rank, ranks, daemon, "steady_job", os.path.join(self.place, "never"),
                               **settings)

    def restart(self, daemon, *flags, name="a0"):
        """Kills it, and starts another one in its place."""
        daemon.send(signal.SIGKILL)
        daemon.wait()
        return self.start_daemon(*flags, name=name)

    def all_end_well(self, processes):
        for process in processes:
            status = process.wait()
            if status != 0:
                raise AssertionError(f"{process.name} ended with status {status}")
