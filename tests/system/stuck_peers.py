"""A process that takes the place of a local worker, and stops in the middle of a message, sends
garbage or takes its memory away, affects no other: jobs continue, new ones form, the daemon
ends."""
import array
import contextlib
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import tempfile
import termios

import harness

# vhost-user's requests, those that are needed here.
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_LOG_BASE, SET_VRING_ERR, GET_INFLIGHT_FD = 6, 14, 31
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL, GET_PROTOCOL_FEATURES, SET_VRING_ENABLE = 12, 13, 15, 18
VERSION = 1
FEATURES = 1 << 32 | 1 << 30  # VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES

RING = 256  # descriptors
MEMORY_BYTES = 1 << 20
DESCRIPTORS, AVAILABLE, USED, FRAMES = 0x0, 0x4000, 0x8000, 0x40000  # of a ring, in its half


def header(request, size, flags=VERSION):
    return struct.pack("<III", request, flags, size)


def message(request, payload=b""):
    return header(request, len(payload)) + payload


class Peer:
    """Serves a socket as a worker does. The daemon connects to it, again when it loses it."""

    def __init__(self, path, process):
        self.path = path
        self.process = process  # the daemon's
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(harness.TIME_LIMIT)
        self.listener.bind(path)
        self.listener.listen()
        self.daemon = None
        self.descriptors = []

    def meet(self):
        self.daemon, _ = self.listener.accept()
        self.daemon.settimeout(harness.TIME_LIMIT)
        return self

    def close(self):
        for open_one in (self.listener, self.daemon):
            if open_one:
                open_one.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def give(self, *parts):
        """Each data and descriptors, which are the daemon's alone before it sees any. It may have
        disconnected already."""
        with harness.stopped(self.process):
            for data, *descriptors in parts:
                try:
                    socket.send_fds(self.daemon, [data], descriptors)
                except (BrokenPipeError, ConnectionResetError):
                    self.descriptors += descriptors  # to be closed when there is no wait
                else:
                    for descriptor in descriptors:
                        os.close(descriptor)

    def say(self, data, *descriptors):
        """Waits until the daemon has read it."""
        if descriptors:
            socket.send_fds(self.daemon, [data], descriptors)
        else:
            self.daemon.sendall(data)
        harness.wait_until(lambda: self._unread() == 0, "the daemon reads")

    def _unread(self):
        amount = array.array("i", [0])
        fcntl.ioctl(self.daemon, termios.TIOCOUTQ, amount)
        return amount[0]

    def is_dropped(self):
        """Whether the daemon has ended the connection."""
        try:
            return self.daemon.recv(4096, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def wait_until_dropped(self):
        harness.wait_until(self.is_dropped, "the daemon disconnects")

    def ask(self, request):
        self.daemon.sendall(message(request))
        return self.daemon.recv(4096)

    def share_memory(self):
        """Two rings and frames, as a worker's driver shares them."""
        memory = os.memfd_create("worker")
        self.descriptors.append(memory)
        os.ftruncate(memory, MEMORY_BYTES)
        self.memory = mmap.mmap(memory, MEMORY_BYTES)
        self.ask(GET_FEATURES)
        self.say(message(SET_FEATURES, struct.pack("<Q", FEATURES)))
        self.say(message(SET_OWNER))
        self.say(message(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY_BYTES, 0, 0)),
                 memory)

    def set_up_ring(self, index, call):
        base = index * MEMORY_BYTES // 2
        kick = os.eventfd(0)
        self.descriptors += [kick, call]
        self.say(message(SET_VRING_NUM, struct.pack("<II", index, RING)))
        self.say(message(SET_VRING_BASE, struct.pack("<II", index, 0)))
        self.say(message(SET_VRING_ADDR, struct.pack(
            "<IIQQQQ", index, 0, base + DESCRIPTORS, base + USED, base + AVAILABLE, 0)))
        self.say(message(SET_VRING_CALL, struct.pack("<Q", index)), call)
        self.say(message(SET_VRING_KICK, struct.pack("<Q", index)), kick)
        self.say(message(SET_VRING_ENABLE, struct.pack("<II", index, 1)))

    def start_device(self, make_call=lambda: os.eventfd(0)):
        """As a correct worker does: from now on the daemon's lane reads its memory, and writes to
        the result of make_call when it has taken or sent a frame."""
        self.share_memory()
        for index in (0, 1):
            self.set_up_ring(index, make_call())

    def send_frame(self, frame=bytes(64)):
        """Sends by the second ring; waits until the lane has taken it."""
        base = MEMORY_BYTES // 2
        at = base + FRAMES
        self.memory[at:at + 12 + len(frame)] = bytes(12) + frame
        self.memory[base:base + 16] = struct.pack("<QIHH", at, 12 + len(frame), 0, 0)
        count = self._taken() + 1
        self.memory[base + AVAILABLE:base + AVAILABLE + 4] = struct.pack("<HH", 0, count)
        harness.wait_until(lambda: self._taken() == count, "the lane takes a frame")

    def _taken(self):
        at = MEMORY_BYTES // 2 + USED
        return struct.unpack("<HH", self.memory[at:at + 4])[1]

    def take_memory_away(self):
        self.memory.close()
        os.ftruncate(self.descriptors[0], 0)


class PeerTest(harness.SystemTest):
    def setUp(self):
        self.daemon = self.start_daemon("--log-rate-limit", 0)  # the test looks for each refusal
        self.other_job = self.start_steady_job(2, self.daemon)
        self.peers = 0

    def start_peer(self):
        self.peers += 1
        peer = Peer(f"{self.directory()}/peer{self.peers}.sluice", self.daemon)
        self.addCleanup(peer.close)
        return peer

    def nobody_notices(self):
        """A job that has run meanwhile is right, another one forms, and the daemon ends in
        order."""
        newcomer = self.start_steady_job(2, self.daemon)
        for rank in newcomer + self.other_job:
            self.assertTrue(rank.is_running(), rank.report())
        self.end_steady_job(newcomer)
        self.end_steady_job(self.other_job)
        for rank in newcomer + self.other_job:
            self.assertEqual(harness.errors_of(rank), "", rank.name)
        self.ends_on_signal(self.daemon)
        self.assertEqual(self.counter(self.daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(self.daemon, "jobs_left"), 2)

    def is_refused(self, peer):
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: it stopped in the middle of "
                                "a message")


class Stuck(PeerTest):
    def test_after_a_header(self):
        peer = self.start_peer().meet()
        peer.say(header(SET_FEATURES, 8))
        self.nobody_notices()
        self.is_refused(peer)

    def test_after_a_header_in_the_middle_of_connecting(self):
        peer = self.start_peer().meet()
        peer.share_memory()
        peer.say(header(SET_VRING_NUM, 8))
        self.nobody_notices()
        self.is_refused(peer)

    def test_after_a_header_with_its_link_up(self):
        peer = self.start_peer().meet()
        peer.start_device()
        peer.send_frame()
        peer.say(header(SET_VRING_ENABLE, 8))
        self.nobody_notices()
        self.is_refused(peer)

    def test_when_it_should_read_answers(self):
        """It asks until the daemon cannot send any more."""
        peer = self.start_peer().meet()
        peer.daemon.settimeout(1)
        try:
            while True:
                peer.daemon.sendall(message(GET_FEATURES))
        except OSError:  # it accepts no more, or was informed already
            pass
        self.nobody_notices()
        self.is_refused(peer)

    def test_when_the_lane_calls_it(self):
        """It is signalled by a write, which may block: it has made the eventfd blocking again."""
        peer = self.start_peer().meet()
        call = self.full_eventfd()
        peer.start_device(lambda: os.dup(call))
        os.set_blocking(call, True)
        peer.send_frame()
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: it does not take calls")
        self.nobody_notices()

    def full_eventfd(self):
        call = os.eventfd(2**32 - 1)
        self.addCleanup(os.close, call)
        os.eventfd_write(call, 2**64 - 1 - 2**32)
        return call

    def test_with_a_full_eventfd(self):
        peer = self.start_peer().meet()
        call = self.full_eventfd()
        peer.start_device(lambda: os.dup(call))
        peer.send_frame()
        self.nobody_notices()

    def test_before_its_first_word(self):
        self.start_peer().meet()
        self.nobody_notices()

    def test_before_it_accepts(self):
        self.start_peer()
        self.nobody_notices()

    def test_many_at_once(self):
        for peer in [self.start_peer() for _ in range(8)]:
            peer.meet().daemon.sendall(header(SET_FEATURES, 8))
        self.nobody_notices()

    def test_while_the_daemon_ends(self):
        self.end_steady_job(self.other_job)
        self.start_peer().meet().say(header(SET_FEATURES, 8))
        self.ends_on_signal(self.daemon)


class Descriptors(PeerTest):
    """Whatever a peer passes, the daemon does not write to it or wait until it is closed, except
    for eventfds and memory."""

    def endless_socket(self):
        full, other = harness.endless_socket()
        self.addCleanup(other.close)
        return full

    def of_every_kind(self):
        """Each is a new one, which its receiver closes."""
        read, write = os.pipe()
        pair = socket.socketpair()
        pidfd = os.pidfd_open(os.getpid())
        on_disk = tempfile.TemporaryDirectory(dir="/var/tmp")  # /tmp may be in memory
        self.addCleanup(on_disk.cleanup)
        plain = os.path.join(on_disk.name, "anon_inode:[eventfd]")
        fifo = os.path.join(self.place, "fifo")
        if not os.path.exists(fifo):
            os.mkfifo(fifo)
        yield from ((read, "pipe:"), (write, "pipe:"), (pair[0].detach(), "socket:"),
                    (pair[1].detach(), "socket:"), (pidfd, "anon_inode:.pidfd."),
                    (os.open(plain, os.O_RDWR | os.O_CREAT), plain.replace("[", r"\[")),
                    (os.open("/dev/fuse", os.O_RDWR), "/dev/fuse"),
                    (os.open("/", os.O_RDONLY), "/"),
                    (os.open("/proc/self/fd", os.O_PATH), "/proc/.*/fd"),
                    (os.open(fifo, os.O_RDWR), fifo), (self.endless_socket(), "socket:"))

    def refused(self, peer, why):
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: {why}")

    def test_that_are_no_eventfds(self):
        for request in (SET_VRING_CALL, SET_VRING_KICK, SET_VRING_ERR):
            for descriptor, kind in self.of_every_kind():
                with self.subTest(request=request, kind=kind):
                    peer = self.start_peer().meet()
                    peer.give((message(request, struct.pack("<Q", 0)), descriptor))
                    self.refused(peer, f"it passed {kind}.*, an eventfd expected")
        self.nobody_notices()

    def test_that_are_no_memory(self):
        table = message(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY_BYTES, 0, 0))
        for descriptor, kind in self.of_every_kind():
            with self.subTest(kind=kind):
                peer = self.start_peer().meet()
                peer.give((table, descriptor))
                self.refused(peer, f"it passed {kind}.*, a memfd expected")
        self.nobody_notices()

    def test_that_nobody_asked_for(self):
        """The kernel closes descriptors that are not taken, on the thread that reads or
        disconnects."""
        for data in (message(GET_FEATURES), message(SET_FEATURES, struct.pack("<Q", FEATURES)),
                     message(SET_LOG_BASE, bytes(16)), message(77), header(SET_FEATURES, 8),
                     header(SET_FEATURES, 0xffffffff), b"x"):
            for count in (1, 9):
                with self.subTest(data=data[:12].hex(), count=count):
                    peer = self.start_peer().meet()
                    peer.give((data, *(self.endless_socket() for _ in range(count))))
                    peer.wait_until_dropped()
        self.nobody_notices()

    def test_in_the_second_part_of_a_message(self):
        peer = self.start_peer().meet()
        peer.give((header(SET_FEATURES, 8),),
                  (struct.pack("<Q", FEATURES), self.endless_socket()))
        peer.wait_until_dropped()
        self.nobody_notices()

    def test_that_wait_unread(self):
        """When the connection ends, the kernel closes descriptors that nobody has read."""
        peer = self.start_peer().meet()
        peer.give((header(SET_FEATURES, 8),), *((b"x", self.endless_socket()) for _ in range(4)))
        peer.wait_until_dropped()
        self.nobody_notices()


class Rings(PeerTest):
    """DPDK allocates memory that all ports share for each of them; there is a limit for each."""

    def test_that_are_many_or_long(self):
        for payload, why in (((16, RING), "its ring 16: less than 16 expected"),
                             ((255, RING), "its ring 255: less than 16 expected"),
                             ((0, 2048), r"its ring of 2048 descriptors: 1\.\.1024 expected"),
                             ((1, 0), r"its ring of 0 descriptors: 1\.\.1024 expected")):
            with self.subTest(payload=payload):
                peer = self.start_peer().meet()
                peer.give((message(SET_VRING_NUM, struct.pack("<II", *payload)),))
                self.daemon.wait_to_say(f"local worker at {peer.path} refused: {why}")
        peer = self.start_peer().meet()
        peer.give(*((message(SET_VRING_NUM, struct.pack("<II", ring, 1024)),)
                    for ring in range(3)))
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: its rings of 3072 "
                                "descriptors in all: at most 2048 expected")
        peer = self.start_peer().meet()
        peer.give((message(GET_INFLIGHT_FD, struct.pack("<QQHH", 0, 0, 2, 1024)),))
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: it sent request 31, which "
                                "no worker sends")
        self.nobody_notices()

    def test_that_use_up_memory(self):
        """Each takes as much as there is, in smaller and smaller pieces; others can still
        attach."""
        for size in (32768, 2048, 128):
            peer = self.start_peer().meet()
            rings = self.set_up_rings(peer, size, 256)
            harness.wait_until(
                lambda: rings == 256 or select.select([peer.listener], [], [], 0)[0] or
                f"{peer.path} refused: its ring" in self.daemon.err, "it refuses, or comes again")
            if select.select([peer.listener], [], [], 0)[0]:
                self.set_up_rings(peer.meet(), size, rings)
        self.nobody_notices()

    @staticmethod
    def set_up_rings(peer, size, most):
        """How many of them it has before the daemon disconnects."""
        for ring in range(most):
            try:
                peer.daemon.sendall(message(SET_VRING_NUM, struct.pack("<II", ring, size)))
                if not peer.ask(GET_FEATURES):
                    return ring
            except (BrokenPipeError, ConnectionResetError):
                return ring
        return most


class Garbage(PeerTest):
    def test_of_every_sort(self):
        for data in (b"\xff" * 12, b"\0" * 12, header(SET_FEATURES, 0xffffffff),
                     header(SET_FEATURES, 8, flags=0) + b"\xff" * 8, header(77, 0), b"\x01",
                     message(SET_MEM_TABLE, b"\xff" * 40), message(SET_VRING_NUM, b"\xff" * 8),
                     message(SET_VRING_ADDR, struct.pack("<IIQQQQ", 0, 0, 1, 2, 3, 4)),
                     message(SET_VRING_KICK, b"\xff" * 8), message(GET_VRING_BASE, bytes(8)),
                     os.urandom(4096)):
            with self.subTest(data=data[:16].hex()):
                peer = self.start_peer().meet()
                peer.daemon.sendall(data)
        self.nobody_notices()

    def test_of_memory_without_descriptors(self):
        peer = self.start_peer().meet()
        peer.ask(GET_FEATURES)
        peer.say(message(SET_OWNER))
        peer.say(message(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY_BYTES, 0, 0)))
        peer.wait_until_dropped()
        self.nobody_notices()

    def test_of_descriptors(self):
        """Bad contents of valid rings: addresses outside of memory, chains without end."""
        peer = self.start_peer().meet()
        peer.start_device()
        peer.send_frame()
        base = MEMORY_BYTES // 2
        for i in range(RING):
            peer.memory[base + 16 * i:base + 16 * i + 16] = struct.pack(
                "<QIHH", i * 0x1111_1111_1111 % 2**64, 0xffffffff, 1, i)
        peer.memory[base + AVAILABLE + 4:base + AVAILABLE + 4 + 2 * RING] = struct.pack(
            f"<{RING}H", *(i * 7 % 65536 for i in range(RING)))
        peer.memory[base + AVAILABLE:base + AVAILABLE + 4] = struct.pack("<HH", 0, 1 + RING)
        self.nobody_notices()


class Memory(PeerTest):
    def test_that_is_taken_away(self):
        peer = self.start_peer().meet()
        peer.start_device()
        peer.send_frame()
        peer.take_memory_away()
        self.nobody_notices()
        self.daemon.wait_to_say(f"local worker at {peer.path} refused: its memory is gone")

    def test_that_is_taken_away_while_it_connects(self):
        """Here DPDK's own thread accesses it."""
        peer = self.start_peer().meet()
        peer.share_memory()
        peer.take_memory_away()
        for index in (0, 1):
            peer.set_up_ring(index, os.eventfd(0))
        self.nobody_notices()

    def test_of_nobody_else_is_replaced(self):
        """Any other process that gets such a bus error is killed by it."""
        self.daemon.send(signal.SIGBUS)
        self.assertEqual(self.daemon.wait(), -signal.SIGBUS)


class Aggregators(harness.SystemTest):
    """Now the daemon is the peer that does not answer, and every call of a rank ends."""

    def test_that_are_stopped(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=1000)
        daemon.send(signal.SIGSTOP)
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost")
        daemon.send(signal.SIGCONT)
        daemon.wait_to_say(r"a lane was not run for \d{4,} ms: its core was taken, or the process "
                           "stopped")
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.ends_on_signal(daemon)

    def test_of_which_one_is_stopped(self):
        daemons = self.start_shards(2)
        job = self.start_steady_job(2, daemons, SLUICE_AGGREGATOR_TIMEOUT_MS=1000)
        daemons[1].send(signal.SIGSTOP)
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost")
        self.ends_on_signal(daemons[0])

    def test_that_take_a_worker_and_never_answer(self):
        os.mkdir(self.directory(), mode=0o700)
        self.claim_directory()
        rank = self.start_joiner(0, 1, "vhost:" + self.directory(), SLUICE_CONNECT_TIMEOUT_MS=1000)
        with self.connect_to_worker():
            self.ends_with(rank, 3, "unavailable", "no aggregator connected to its socket and "
                           "answered in time")
        self.assertEqual(os.listdir(self.directory()), ["lanes"])

    def test_that_take_the_place_of_another_and_never_answer(self):
        """Here DPDK's interrupt thread waits for an answer."""
        daemon = self.start_daemon()
        rank, = self.start_steady_job(1, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=2000)
        daemon.kill()
        self.claim_directory()
        with self.connect_to_worker():
            self.ends_with(rank, 3, "aggregator lost")

    def claim_directory(self):
        """As a daemon that serves it."""
        claim = os.open(os.path.join(self.directory(), "lanes"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, claim)
        fcntl.flock(claim, fcntl.LOCK_EX)

    def connect_to_worker(self):
        """Waits until it has sent us a request."""
        us = socket.socket(socket.AF_UNIX)
        us.settimeout(harness.TIME_LIMIT)

        def connected():  # a killed daemon leaves sockets of its own there
            for name in os.listdir(self.directory()):
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    us.connect(os.path.join(self.directory(), name))
                    return True
            return False
        harness.wait_until(connected, "the worker serves a socket")
        self.assertGreater(len(us.recv(4096)), 0)
        return us


if __name__ == "__main__":
    harness.main()
