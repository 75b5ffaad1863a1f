"""Memory that local workers share by reference: whatever one of them passes to the daemon, or keeps
from it, the daemon goes on, keeps nothing, and the jobs of all others are right. A worker that may
not share joins all the same, and says why."""
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import socket
import struct
import sys
import unittest

import harness

# A message of common/memory/exchange.cpp: magic, kind, question, id, job, lane, reason.
MESSAGE = struct.Struct("<IHHQIH106s")
MAGIC = 0x524c5304
ARENA, MAPPED, ASK, RESULTS, REFUSED, FORGET, DONE = 1, 2, 3, 4, 5, 6, 7

SHARES = {"SLUICE_LOG": "info"}
IN_PACKETS = "blocks go in packets: "  # what a rank says that cannot share
KIB = 1024
GIB = 1 << 30


def message(kind, region=0, job=0, magic=MAGIC):
    return MESSAGE.pack(magic, kind, 0, region, job, 0, b"")


def memfd(size=4 * KIB, seals=fcntl.F_SEAL_SHRINK, flags=0):
    """A region, of which no page is taken."""
    file = os.memfd_create("region", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(file, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


class Client:
    """Speaks with the daemon as a worker does, or otherwise."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)  # waits while too many others wait
        self.socket.settimeout(harness.TIME_LIMIT)

    def close(self):
        self.socket.close()

    def send(self, data, *files):
        socket.send_fds(self.socket, [data], files)

    def ask(self, data, *files):
        """Kind, region and text of the answer."""
        self.send(data, *files)
        _, kind, _, region, _, _, reason = MESSAGE.unpack(self.socket.recv(MESSAGE.size))
        return kind, region, reason.split(b"\0")[0].decode()

    def end(self):
        """The daemon disconnects whoever says this, once it has read what came before."""
        try:
            self.send(b"no request")
        except BrokenPipeError:  # it has done so already
            pass

    def is_dropped(self):
        """Whether the daemon has ended the connection; what it sent before is passed over."""
        try:
            while select.select([self.socket], [], [], 0)[0]:
                if not self.socket.recv(MESSAGE.size):
                    return True
            return False
        except ConnectionResetError:
            return True

    def wait_until_dropped(self):
        harness.wait_until(self.is_dropped, "the daemon disconnects")


class RegionTest(harness.SystemTest):
    def start_serving(self, *flags, **settings):
        """A daemon, and a job by reference that runs all the while."""
        self.daemon = self.start_daemon("--log-rate-limit", 0, *flags, **settings)
        self.other_job = self.start_sharing_job()

    def start_sharing_job(self, ranks=2):
        number = 2000 + next(self.numbers)
        job = self.start_steady_job(ranks, self.daemon, SLUICE_JOB=number, **SHARES)
        self.daemon.wait_to_say(rf"job {number}: formed, .*{harness.BY_REFERENCE}")
        return job

    def path(self):
        return os.path.join(self.directory(), "regions")

    def client(self):
        client = Client(self.path())
        self.addCleanup(client.close)
        return client

    def file(self, descriptor):
        self.addCleanup(os.close, descriptor)
        return descriptor

    def open_files(self):
        return len(os.listdir(f"/proc/{self.daemon.popen.pid}/fd"))

    def keeps_no_file(self, before):
        harness.wait_until(lambda: self.open_files() <= before, f"the daemon has {before} files "
                           "open as before", harness.AT_ONCE)

    def nobody_notices(self, aborted=0):
        """The job that ran all the while is right, another goes by reference, too, and the daemon
        ends in order."""
        newcomer = self.start_sharing_job()
        for job in (newcomer, self.other_job):
            self.end_steady_job(job)
        self.ends_on_signal(self.daemon)
        self.assertEqual(self.counter(self.daemon, "jobs_aborted"), aborted)


class Failing(RegionTest):
    def test_memory_ends_the_job_that_reads_it_alone(self):
        """As of a damaged page: the daemon gets SIGBUS where a rank's slots are mapped."""
        fails = os.path.join(self.place, "fails")
        self.start_serving(LD_PRELOAD=harness.program("libmemory_fails.so"), MEMORY_FAILS=fails)
        job = self.start_sharing_job()
        with open(fails, "w", encoding="ascii"):
            pass
        for rank in job:
            self.ends_with(rank, 3, r"worker lost about rank [01]: .*rank [01] is lost: the memory "
                           "that it shares cannot be read any more")
        self.daemon.wait_to_say(rf"the memory that process ({job[0].popen.pid}|{job[1].popen.pid}) "
                                "shared cannot be read any more")
        self.nobody_notices(aborted=1)


class Regions(RegionTest):
    """That the daemon refuses, each with the reason, and keeps no file of."""

    def setUp(self):
        self.start_serving()
        self.before = self.open_files()

    def refused(self, why, *files):
        with self.subTest(why=why):
            kind, region, reason = self.hostile.ask(message(ARENA, region=7), *files)
            self.assertEqual((kind, region), (REFUSED, 7))
            self.assertRegex(reason, why)
            self.daemon.wait_to_say(f"shared memory was refused: .*{why}")

    def test_that_are_none(self):
        self.hostile = self.client()
        ends = os.pipe()
        shared = f"/dev/shm/sluice-{os.getpid()}"
        self.addCleanup(os.unlink, shared)
        pair = socket.socketpair()
        for end in pair:
            self.addCleanup(end.close)
        read, write = map(self.file, ends)
        plain = self.file(os.open("/var/tmp", os.O_RDWR | os.O_TMPFILE))  # /tmp may be in memory
        os.truncate(plain, 4096)
        shared = self.file(os.open(shared, os.O_RDWR | os.O_CREAT))
        os.truncate(shared, 4096)
        for file in (read, write, plain, pair[0].fileno(), self.file(os.eventfd(0)),
                     self.file(os.open("/dev/zero", os.O_RDONLY)),
                     self.file(os.open("/", os.O_RDONLY)),
                     self.file(os.open("/dev/fuse", os.O_RDWR))):
            self.refused("a peer's shared memory: its file cannot be sealed", file)
        self.refused("a peer's shared memory: its file cannot be sealed")
        self.refused("its file cannot be sealed", self.file(memfd()), self.file(memfd()))
        self.refused("a peer's shared memory: it is not sealed against shrinking", shared)
        self.keeps_no_file(self.before + 1)
        self.nobody_notices()

    def test_that_are_never_closed(self):
        """Whoever closes one waits until its owner ends."""
        for data in (message(ARENA, 7), message(ASK, job=1), message(FORGET, 7), b"x", b""):
            for count in (1, 5):
                client = self.client()
                ends = [harness.endless_socket() for _ in range(count)]
                for _, other in ends:
                    self.addCleanup(other.close)
                with harness.stopped(self.daemon):
                    client.send(data, *(full for full, _ in ends))
                    for full, _ in ends:
                        os.close(full)
                    client.end()
                client.wait_until_dropped()
        self.keeps_no_file(self.before)
        self.nobody_notices()

    def test_that_their_owner_can_take_away(self):
        self.hostile = self.client()
        for seals in (0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL):
            file = self.file(memfd(seals=seals))
            os.truncate(file, 0)  # as it could at any time
            self.refused("it is not sealed against shrinking", file)
        try:
            huge = self.file(memfd(size=2 << 20, flags=os.MFD_HUGETLB))
        except OSError as error:
            print(f"skipped: hugetlbfs: {error}")
        else:
            self.refused("it is of hugetlbfs", huge)
        self.nobody_notices()

    def test_of_no_bytes_or_too_many(self):
        self.hostile = self.client()
        limit = 16 * GIB
        self.refused("it has 0 bytes", self.file(memfd(size=0)))
        self.refused(f"{limit + 1} bytes beside 0 that are mapped; the daemon's arena-memory-mib "
                     f"allows {limit}", self.file(memfd(size=limit + 1)))
        half = self.file(memfd(size=limit // 2 + 1))
        self.assertEqual(self.hostile.ask(message(ARENA, region=8), half)[:2], (MAPPED, 8))
        self.refused(f"{limit // 2 + 1} bytes beside {limit // 2 + 1} that are mapped", half)
        self.refused("9223372036854775807 bytes beside", self.file(memfd(size=2**63 - 1)))
        self.nobody_notices()

    def test_that_only_writing_is_allowed_of(self):
        self.hostile = self.client()
        file = self.file(memfd())
        write_only = self.file(os.open(f"/proc/self/fd/{file}", os.O_WRONLY))
        self.refused("cannot be mapped", write_only)
        self.refused("cannot be sealed", self.file(os.open(f"/proc/self/fd/{file}", os.O_PATH)))
        self.nobody_notices()

    def test_that_are_very_many(self):
        self.hostile = self.client()
        file = self.file(memfd())
        for region in range(1, 1025):
            self.assertEqual(self.hostile.ask(message(ARENA, region), file)[0], MAPPED)
        self.refused("its worker shares 1024 regions already", file)
        self.hostile.send(message(FORGET, 1024))
        self.assertEqual(self.hostile.ask(message(ARENA, 7777), file)[0], MAPPED)
        self.keeps_no_file(self.before + 1)
        self.nobody_notices()

    def test_with_the_id_of_anothers(self):
        """It is not replaced, and goes with its own worker only."""
        first, self.hostile = self.client(), self.client()
        mine, other = self.file(memfd()), self.file(memfd())
        self.assertEqual(first.ask(message(ARENA, 7), mine)[0], MAPPED)
        self.refused("a region with this id is mapped already", other)
        self.hostile.send(message(FORGET, 7))
        self.refused("a region with this id is mapped already", other)
        first.close()
        harness.wait_until(lambda: self.hostile.ask(message(ARENA, 7), other)[0] == MAPPED,
                           "the daemon forgets it")
        self.nobody_notices()


class Messages(RegionTest):
    def setUp(self):
        self.start_serving()
        self.before = self.open_files()

    def test_of_garbage(self):
        for data in (b"\0", b"\xff" * 128, message(ARENA)[:-1], message(ARENA) + b"\0",
                     message(ARENA, magic=0x524c5302), message(MAPPED), message(RESULTS),
                     message(REFUSED), message(0), message(0xffff), os.urandom(128), bytes(60_000)):
            with self.subTest(data=data[:16].hex(), size=len(data)):
                client = self.client()
                client.send(data, self.file(memfd()))
                client.wait_until_dropped()
        self.keeps_no_file(self.before)
        self.nobody_notices()

    def test_with_very_many_files(self):
        """Those that are not asked for are closed, in a message without bytes, too."""
        file = self.file(memfd())
        for data in (message(ARENA, 7), message(ASK, job=1), message(FORGET, 7), b"x", b""):
            for count in (1, 2, 4, 5, 253):
                with self.subTest(data=data[:8].hex(), count=count):
                    clients = [self.client() for _ in range(4)]
                    for client in clients:
                        client.send(data, *[file] * count)
                        client.end()
                    for client in clients:
                        client.wait_until_dropped()
                    self.keeps_no_file(self.before)
        self.nobody_notices()

    def test_that_nobody_takes(self):
        """It asks and never reads: the daemon disconnects it once there is no room."""
        client = self.client()
        client.socket.settimeout(0.2)
        try:
            for _ in range(100_000):
                client.send(message(ASK, job=1))
        except OSError:
            pass
        client.wait_until_dropped()
        self.keeps_no_file(self.before)
        self.nobody_notices()

    def test_for_very_many_jobs(self):
        """Each takes memory until its ranks have come."""
        client = self.client()
        answers = [client.ask(message(ASK, job=job)) for job in range(1, 19)]
        self.assertEqual([kind for kind, *_ in answers], [RESULTS] * 16 + [REFUSED] * 2)
        self.assertEqual(answers[-1][2], "too many jobs wait for their ranks")
        client.close()
        self.keeps_no_file(self.before)
        self.nobody_notices()


class Connections(RegionTest):
    def setUp(self):
        self.start_serving()
        self.before = self.open_files()

    def test_that_are_hundreds(self):
        """Of one process, which says nothing: others find places."""
        clients = [self.client() for _ in range(60)]
        harness.wait_until(lambda: sum(client.is_dropped() for client in clients) >= 60 - 7,
                           "the daemon takes a quarter of as many as it may have workers")
        for _ in range(5):
            clients += [self.client() for _ in range(60)]
        self.assertLess(self.open_files(), self.before + 40)
        self.daemon.wait_to_say(f"shared memory was refused: its process {os.getpid()} has 7 "
                                "connections already")
        self.end_steady_job(self.start_sharing_job())
        for client in clients:
            client.close()
        self.keeps_no_file(self.before)
        self.nobody_notices()

    def test_that_come_and_go(self):
        file = self.file(memfd())
        for _ in range(300):
            client = Client(self.path())
            with contextlib.suppress(BrokenPipeError):  # refused: those before it are there yet
                client.send(message(ARENA, 7), file)
            client.close()
        last = self.client()
        last.end()
        last.wait_until_dropped()
        self.keeps_no_file(self.before)
        self.nobody_notices()

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_of_another_user(self):
        """Who can reach the socket is refused all the same, and what he has sent is closed, which
        takes as long as he likes."""
        for path, mode in ((self.place, 0o711), (self.directory(), 0o711), (self.path(), 0o777)):
            os.chmod(path, mode)
        script = ("import os, signal, socket, sys\n"
                  "server = socket.create_server(('127.0.0.1', 0))\n"
                  "full = socket.create_connection(server.getsockname())\n"
                  "linger = (10_000 << 32 | 1).to_bytes(8, 'little')\n"
                  "full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)\n"
                  "full.setblocking(False)\n"
                  "try:\n"
                  "    while True: full.send(bytes(65536))\n"
                  "except BlockingIOError:\n"
                  "    pass\n"
                  "us = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                  "us.connect(sys.argv[1])\n"
                  "socket.send_fds(us, [b'x'], [full.fileno()])\n"
                  "full.close()\n"
                  "print('sent', flush=True)\n"
                  "try:\n"
                  "    assert us.recv(1) == b'', 'not disconnected'\n"
                  "except ConnectionResetError:\n"
                  "    pass\n"
                  "print('disconnected', flush=True)\n"
                  "signal.pause()\n")
        with harness.stopped(self.daemon):
            other = self.start("nobody", harness.DEBIAN_PYTHON, "-c", script, self.path(),
                               before_exec=harness.become_nobody)
            other.wait_to_say("sent")
        other.wait_to_say("disconnected")
        self.daemon.wait_to_say("shared memory was refused: its process is another user's")
        self.keeps_no_file(self.before)
        self.nobody_notices()


class Sockets(RegionTest):
    """Something else lies where the daemon's should. Who comes then shares nothing, and joins."""

    def setUp(self):
        self.daemon = self.start_daemon()

    def joins_in_packets(self, why):
        job = self.start_steady_job(2, self.daemon, **SHARES)
        self.end_steady_job(job)
        for rank in job:
            self.assertEqual(rank.err.count(IN_PACKETS), 1, rank.err)
            self.assertRegex(rank.err, f"info .*{IN_PACKETS}{why}")
        self.ends_on_signal(self.daemon)
        self.assertEqual(self.counter(self.daemon, "jobs_left"), 1)

    def test_nothing(self):
        os.unlink(self.path())
        self.joins_in_packets(f"the daemon shares no memory at {self.path()}")

    def test_a_file(self):
        os.unlink(self.path())
        with open(self.path(), "w", encoding="ascii"):
            pass
        self.joins_in_packets(f"the daemon shares no memory at {self.path()}")

    def impostor(self, kind=socket.SOCK_SEQPACKET):
        os.unlink(self.path())
        listener = socket.socket(socket.AF_UNIX, kind)
        self.addCleanup(listener.close)
        listener.bind(self.path())
        listener.listen()
        return listener

    def test_a_socket_of_another_kind(self):
        self.impostor(socket.SOCK_STREAM)
        self.joins_in_packets(f"the daemon shares no memory at {self.path()}")

    def test_a_process_that_never_answers(self):
        self.impostor()
        self.joins_in_packets(f"the daemon of vhost:{self.directory()} does not answer about "
                              "shared memory")


def refuse_system_call(number, argument=None, bit=0):
    """In this process from now on: EPERM for the call, only with that bit in that argument if one
    is named. By a filter of seccomp, as sandboxes have them."""
    load, equal, bit_set, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse = 0x7fff0000, 0x00050000 | errno.EPERM
    code = [(load, 0, 0, 0)]  # the number
    if argument is None:
        code += [(equal, 0, 1, number)]
    else:
        code += [(equal, 0, 3, number), (load, 0, 0, 16 + 8 * argument), (bit_set, 0, 1, bit)]
    code += [(answer, 0, 0, refuse), (answer, 0, 0, allow)]
    program = b"".join(struct.pack("<HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program)
    filter_ = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, filter_, 0, 0) != 0:
        os._exit(99)


MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine())


class Sandboxes(RegionTest):
    """A worker that may not share, and the daemon beside it."""

    def joins_in_packets(self, why, before_exec=None, **settings):
        """Of two ranks one may not."""
        stop = os.path.join(self.place, "stop")
        job = [self.start_rank(rank, 2, self.daemon, "steady_job", stop, SLUICE_JOB=7,
                               before_exec=before_exec if rank == 0 else None,
                               **SHARES, **(settings if rank == 0 else {})) for rank in range(2)]
        for rank in job:
            rank.stop_file = stop
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.assertEqual(job[0].err.count(IN_PACKETS), 1, job[0].err)
        self.assertRegex(job[0].err, f"info .*{IN_PACKETS}{why}")
        self.assertNotRegex(self.daemon.err, rf"job 7: formed.*{harness.BY_REFERENCE}")
        self.nobody_notices()

    @unittest.skipUnless(MEMFD_CREATE, "the number of memfd_create is not known here")
    def test_without_sealed_files(self):
        """DPDK needs a memfd, too, but none that can be sealed."""
        self.start_serving()
        self.joins_in_packets(
            "shared memory of .* bytes: Operation not permitted",
            lambda: refuse_system_call(MEMFD_CREATE, 1, os.MFD_ALLOW_SEALING))

    @unittest.skipUnless(MEMFD_CREATE, "the number of memfd_create is not known here")
    def test_without_any(self):
        """Then its port cannot be shared either, and joining ends."""
        self.start_serving()
        rank = self.start_joiner(0, 1, self.daemon, SLUICE_JOIN_TIMEOUT_MS=1500,
                                 before_exec=lambda: refuse_system_call(MEMFD_CREATE), **SHARES)
        self.ends_with(rank, 3, f"aggregator 0 at vhost:{self.directory()} is unreachable")
        self.nobody_notices()

    def test_that_pass_no_files(self):
        """On the socket of the regions; ports pass some on theirs."""
        self.start_serving()
        self.joins_in_packets("the daemon at .* cannot be sent memory: Operation not permitted",
                              LD_PRELOAD=harness.program("libpasses_no_files.so"))


class Descriptors(RegionTest):
    def test_that_the_daemon_lacks(self):
        """However few are left, a worker shares, joins without, or is told why it cannot."""
        self.start_serving()
        pid = self.daemon.popen.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        taken = 1 + max(map(int, os.listdir(f"/proc/{pid}/fd")))
        joined = 0
        for spare in range(2, 14, 2):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + spare, limits[1]))
            job = self.launch_steady_job(1, self.daemon, SLUICE_CONNECT_TIMEOUT_MS=1500,
                                         SLUICE_JOIN_TIMEOUT_MS=1500, **SHARES)
            harness.wait_until(lambda: "under way" in job[0].out or not job[0].is_running(),
                               "it joins or fails")
            if job[0].is_running():
                self.end_steady_job(job)
                joined += 1
            else:
                self.ends_with(job[0], 3, "took no further worker|unreachable")
        self.assertGreater(joined, 0)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        self.nobody_notices()

    def test_that_a_worker_lacks(self):
        """It has none left when it joins."""
        self.start_serving()
        script = ("import os, resource, numpy, sluice\n"
                  "with sluice.Context() as context:\n"
                  "    most = 1 + max(map(int, os.listdir('/proc/self/fd')))\n"
                  "    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
                  "    fill = []\n"
                  "    try:\n"
                  "        while True: fill.append(os.dup(0))\n"
                  "    except OSError:\n"
                  "        pass\n"
                  "    with context.join(job=7) as job:\n"
                  "        tensor = numpy.ones(1000, numpy.float32)\n"
                  "        job.all_reduce(tensor).wait()\n"
                  "        assert (tensor == 1).all()\n"
                  "        job.leave()\n")
        rank = self.start_rank(0, 1, self.daemon, harness.PYTHON_WITH_NUMPY, "-B", "-c", script,
                               **harness.python_environment(), **SHARES)
        self.assertEqual(rank.wait(), 0, rank.report())
        self.assertEqual(rank.err.count(IN_PACKETS), 1, rank.err)
        self.assertRegex(rank.err, f"info .*{IN_PACKETS}shared memory of .*: Too many open files")
        self.nobody_notices()


if __name__ == "__main__":
    harness.main()
