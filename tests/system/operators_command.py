"""Commands of an operator to a running daemon, with sluice-ctl: show and end jobs, limit them,
accept no more. Invalid commands, and users without permission, are refused; no lane is affected."""
import collections
import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import threading
import unittest

import harness
import linux
import tshark

CTL = os.path.join(harness.ROOT, "scripts/sluice-ctl")
AGGREGATOR_GONE = "no aggregator answers at "
CLIENTS = 16  # that a daemon answers at the same time


class Commands(harness.SystemTest):
    def start_commanded(self, *flags, **settings):
        self.socket = os.path.join(self.place, "control")
        daemon = self.start_daemon("--control-socket", self.socket, *flags, **settings)
        self.assertIn(f"commands at {self.socket}, for ", daemon.err)
        return daemon

    def ctl(self, *words, status=0):
        done = subprocess.run([CTL, "--socket", self.socket, *map(str, words)],
                              capture_output=True, text=True, timeout=harness.TIME_LIMIT)
        self.assertEqual(done.returncode, status, done.stderr)
        if status == 0:
            self.assertEqual(done.stderr, "")
        return done.stderr if status else done.stdout

    def jobs(self):
        return {job["job"]: job for job in json.loads(self.ctl("jobs", "--json"))}

    def wait_for_job(self, number, holds):
        deadline = harness.Deadline()
        while not (number in (jobs := self.jobs()) and holds(jobs[number])):
            self.assertFalse(deadline.is_over(), jobs)

    def answer_to(self, request):
        with self.connect() as client:
            client.send(request)
            return json.loads(client.recv(1 << 16))

    def connect(self):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(harness.TIME_LIMIT)
        harness.wait_until(lambda: self.is_connected(client), "the daemon takes connections")
        return client

    def is_connected(self, client):
        try:
            client.connect(self.socket)
            return True
        except BlockingIOError:  # too many wait to be accepted
            return False


class Jobs(Commands):
    def test_are_shown(self):
        daemon = self.start_commanded()
        self.assertEqual(self.jobs(), {})
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.wait_for_job(7, lambda shown: shown["active"] and shown["counters"]["rounds"] > 0)
        titles, row = self.ctl("jobs").splitlines()
        self.assertEqual(titles.split()[:3], ["JOB", "STATE", "RANKS"])
        self.assertEqual(row.split()[:3], ["7", "active", "2/2"])
        status = json.loads(self.ctl("status"))
        self.assertFalse(status["draining"])
        self.end_steady_job(job)

    def test_are_ended_one_by_one(self):
        daemon = self.start_commanded()
        stays, goes = [self.start_steady_job(2, daemon, SLUICE_JOB=number) for number in (7, 8)]
        self.assertEqual(self.ctl("kick", 8), "job 8 was ended\n")
        for rank in goes:
            self.ends_with(rank, 3, "job 8: an operator of the aggregator ended the job")
        daemon.wait_to_say(rf"user {os.geteuid()} \(process \d+\): job 8 was ended")
        self.assertIn("there is no job 8 here", self.ctl("kick", 8, status=1))
        self.end_steady_job(stays)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)

    def test_are_ended_by_their_names(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon, SLUICE_JOB="bert-large")
        self.wait_for_job(108174750, lambda shown: shown["active"])
        self.assertEqual(self.ctl("jobs").splitlines()[1].split()[0], "bert-large")
        self.ctl("limit", "bert-large", 4)
        self.ctl("kick", "bert-large")
        for rank in job:
            self.ends_with(rank, 3, "an operator of the aggregator ended the job")

    def test_of_too_great_a_number_are_refused(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(1, daemon, SLUICE_JOB=7)
        self.ctl("limit", "max-jobs", 1)
        self.assertEqual(json.loads(self.ctl("status"))["max_jobs"], 1)
        self.refuses(self.start_joiner(0, 1, daemon, SLUICE_JOB=8), 3, "its limit of 1 jobs")
        daemon.send(signal.SIGHUP)
        daemon.wait_to_say("reload: max-jobs = 1024, was 1")
        self.end_steady_job(self.start_steady_job(1, daemon, SLUICE_JOB=8))
        self.end_steady_job(job)

    def test_run_no_more_streams_than_an_operator_lets_them(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.ctl("limit", 7, 2)
        self.wait_for_job(7, lambda shown: shown["stream_limit"] == 2)
        self.assertIn("there is no active job 9 here", self.ctl("limit", 9, 2, status=1))
        self.ctl("limit", 7, 0)
        self.wait_for_job(7, lambda shown: shown["stream_limit"] is None)
        self.end_steady_job(job)


class Draining(Commands):
    def test_takes_no_new_jobs_and_ends_with_the_last_one(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.assertIn("ends when 1 jobs have left", self.ctl("drain"))
        self.assertTrue(json.loads(self.ctl("status"))["draining"])
        self.assertIn("draining: the daemon takes no new jobs", self.ctl("jobs"))
        self.refuses(self.start_joiner(0, 1, daemon, SLUICE_JOB=8), 3,
                     "the aggregator is about to end and takes no new jobs")
        self.assertIn("1 jobs have not left within 0 s",
                      self.ctl("drain", "--wait", "--timeout", 0, status=1))
        waiting = self.start("ctl", CTL, "-s", self.socket, "drain", "--wait")
        waiting.wait_to_say("no new jobs are taken")
        self.end_steady_job(job)
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(waiting.wait(), 0)
        self.assertTrue(waiting.out.endswith("the daemon has ended\n"), waiting.out)
        self.assertIn("drained: the last job has left", daemon.err)
        self.assertIn(AGGREGATOR_GONE, self.ctl("jobs", status=1))

    def test_ends_at_once_without_jobs(self):
        daemon = self.start_commanded()
        self.ctl("drain")
        self.assertEqual(daemon.wait(), 0)

    def test_is_taken_back(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(1, daemon, SLUICE_JOB=7)
        self.ctl("drain")
        self.ctl("resume")
        self.end_steady_job(self.start_steady_job(1, daemon, SLUICE_JOB=8))
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_does_not_keep_out_the_jobs_of_another_daemon_that_ends(self):
        first = self.start_daemon(name="a0")
        second = self.start_commanded(name="a1")
        held = self.start_steady_job(1, second, SLUICE_JOB=8)
        job = self.start_steady_job(2, self.address("a0", "a1"), SLUICE_JOB=7)
        self.ctl("drain")
        self.ends_on_signal(first)
        second.wait_to_say("job 7: resumed")
        self.end_steady_job(job)
        self.end_steady_job(held)
        self.assertEqual(second.wait(), 0)


class Capturing(Commands):
    """Frames of vhost ports, which no kernel sees."""

    def setUp(self):
        self.file = os.path.join(self.place, "frames.pcap")

    def kinds(self):
        """The number of packets of each kind that tshark finds in the file; none is malformed."""
        rows = [row.split("\t") for row in tshark.lines(
            self, self.file, "-T", "fields", "-e", "sluice.kind", "-e", "sluice.drop")]
        self.assertEqual({drop for _, drop in rows}, {""})
        return collections.Counter(kind for kind, _ in rows)

    def test_so_many_frames(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon)
        said = self.ctl("capture", self.file, "--frames", 300, "--seconds", 600, "--bytes", 9728)
        self.assertRegex(said, r"has 300 frames; \d+ more were missed\n$")
        self.end_steady_job(job)
        kinds = self.kinds()
        self.assertEqual(kinds.total(), 300)
        self.assertGreater(kinds["0x05"], 50)  # DATA, which comes in
        self.assertGreater(kinds["0x88"], 50)  # RESULT, which goes out
        self.ends_on_signal(daemon)

    def test_until_it_is_stopped(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon)
        for file in (self.file, self.file + "2"):
            ctl = self.start("ctl", CTL, "-s", self.socket, "capture", file, "--seconds", 600)
            ctl.wait_to_say("captured for 600 s")
            self.assertIn("another capture is under way",
                          self.ctl("capture", self.place + "/other", status=1))
            harness.wait_until(lambda file=file: os.path.getsize(file) > 10_000, "frames come")
            ctl.send(signal.SIGINT)
            self.assertEqual(ctl.wait(), 0)
            self.assertRegex(ctl.out, r"has \d+ frames; \d+ more were missed\n$")
        self.end_steady_job(job)
        self.assertGreater(self.kinds().total(), 0)
        self.assertIn("nothing is captured", self.answer_to(b"capture stop")["error"])

    def test_for_a_while_and_into_the_daemon_s_end(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon)
        self.assertIn("1..3600 expected", self.ctl("capture", self.file, "--seconds", 0, status=1))
        self.assertIn(" frames; ", self.ctl("capture", self.file, "--seconds", 1))
        ctl = self.start("ctl", CTL, "-s", self.socket, "capture", self.file, "--seconds", 600)
        ctl.wait_to_say("captured for 600 s")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(ctl.wait(), 1)
        self.assertGreater(self.kinds().total(), 0)

    def test_what_cannot_be_written(self):
        self.start_commanded()
        self.assertIn("no file came with", self.answer_to(b"capture 0 1 100")["error"])
        for seconds, bytes_, says in ((1, 0, "frame bytes = 0: 1..9728 expected"),
                                      (1, 9729, "frame bytes = 9729")):
            self.assertIn(says, self.ctl("capture", self.file, "--seconds", seconds, "--bytes",
                                         bytes_, status=1))
        self.assertIn("no regular file", self.ctl("capture", "/dev/null", status=1))
        self.assertIn("/none/such", self.ctl("capture", self.place + "/none/such", status=1))

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_a_full_disk(self):
        """Only sluice-ctl can see the path of the file."""
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon)
        disk = os.path.join(self.place, "disk")
        os.mkdir(disk)
        ctl = self.start("ctl", "unshare", "--mount", "sh", "-c",
                         f"mount -t tmpfs -o size=16k none {disk} && exec \"$0\" \"$@\"", CTL,
                         "-s", self.socket, "capture", os.path.join(disk, "frames"),
                         "--seconds", 600)
        self.ends_with(ctl, 1, "No space left on device")
        self.assertIn("the capture has ended: No space left on device", daemon.err)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)


    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"), harness.NEEDS_ROOT)
    def test_into_a_file_that_blocks_whom_its_owner_likes(self):
        """Commands are answered, the job continues and the daemon ends its work, whichever call on
        the file does not return. Linux keeps the process until that call does."""
        for name, answered in (("fstat", ()), ("write", (FUSE_GETATTR,))):
            with self.subTest(blocks=name):
                daemon = self.start_commanded(name=name)
                job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
                with contextlib.ExitStack() as stack:
                    file, requests = stack.enter_context(blocking_file(self.place, answered))
                    with self.connect() as client:
                        socket.send_fds(client, [b"capture 0 600 512"], [file])
                        self.assertIn("are captured", json.loads(client.recv(1 << 16))["done"])
                    requests.recv(1)  # the daemon is in the call
                    self.wait_for_job(7, lambda shown: shown["active"])
                    self.answer_to(b"capture stop")
                    self.end_steady_job(job)
                    daemon.send(signal.SIGTERM)
                    daemon.wait_to_say("counters at exit: ")
                self.assertEqual(daemon.wait(), 0)


FUSE_GETATTR, FUSE_OPEN, FUSE_FLUSH, FUSE_INIT = 3, 14, 25, 26
ENOSYS = 38


@contextlib.contextmanager
def blocking_file(place, answered):
    """A regular file of a file system (FUSE) that answers only necessary requests and those of the
    kinds `answered`; and a socket, by which comes a byte when there is another."""
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        ours.close()
        try:
            serve_file(place, answered, theirs)
        finally:
            os._exit(1)
    theirs.close()
    try:
        _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
        ours.settimeout(harness.TIME_LIMIT)
        yield file, ours
    finally:
        ours.close()
        os.kill(server, signal.SIGKILL)  # now every call on the file returns
        os.waitpid(server, 0)
        os.close(file)


def serve_file(place, answered, parent):
    libc = ctypes.CDLL(None)
    libc.unshare(linux.CLONE_NEWNS)
    libc.mount(b"none", b"/", None, linux.MS_REC | linux.MS_PRIVATE, None)
    path = os.path.join(place, "blocks")
    with open(path, "w", encoding="ascii"):
        pass
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=100644,user_id=0,group_id=0,allow_other"
    libc.mount(b"none", path.encode(), b"fuse", 0, options.encode())

    def open_and_pass():
        socket.send_fds(parent, [b"f"], [os.open(path, os.O_WRONLY)])

    threading.Thread(target=open_and_pass, daemon=True).start()
    attributes = struct.pack("<QII", 0, 0, 0) + struct.pack("<6Q10I", 1, *[0] * 5, *[0] * 3,
                                                            0o100644, 1, *[0] * 5)
    bodies = {FUSE_INIT: struct.pack("<IIIIHHI", 7, 31, 0, 0, 0, 0, 4096) + bytes(40),
              FUSE_OPEN: struct.pack("<QII", 0, 0, 0), FUSE_GETATTR: attributes}
    while True:
        _, kind, request = struct.unpack_from("<IIQ", os.read(fuse, 1 << 17))
        if kind in (FUSE_INIT, FUSE_OPEN, *answered):
            os.write(fuse, struct.pack("<IiQ", 16 + len(bodies[kind]), 0, request) + bodies[kind])
        elif kind == FUSE_FLUSH:
            os.write(fuse, struct.pack("<IiQ", 16, -ENOSYS, request))
        else:
            parent.send(b"1")


class StuckLanes(Commands):
    def test_are_named_when_they_do_not_answer(self):
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.wait_for_job(7, lambda shown: shown["active"])
        # A lane that is stopped while it signals a rank would seem to be blocked by that rank. So
        # no rank asks for a signal, and the lane has made turns since.
        for rank in job:
            rank.send(signal.SIGSTOP)
        for streams in (8, 7, 8, 7):
            self.ctl("limit", 7, streams)
        with linux.stopped_thread(harness.thread_of(daemon, "sluice-lane-0")):
            for words in (("kick", 7), ("kick", 8), ("limit", 7, 1)):
                self.assertIn("lane 0 did not answer", self.ctl(*words, status=1))
        for rank in job:  # the first command was kept
            rank.send(signal.SIGCONT)
            self.ends_with(rank, 3, "job 7: an operator of the aggregator ended the job")
        self.ends_on_signal(daemon)


class Mistakes(Commands):
    def test_in_commands(self):
        self.start_commanded()
        for words, says in (
                (("kick", "se\tven"), "job 'se?ven': 0..4294967295, or a name of "),
                (("kick", 1 << 32), "job '4294967296': 0..4294967295, or a "),
                (("limit", "max-jobs", 0), "max-jobs = 0: 1.."),
                (("limit", 7, 1 << 20), "streams = 1048576: 0.."),
                (("limit", 7, "few"), "streams 'few'")):
            self.assertIn(says, self.ctl(*words, status=1))
        self.assertEqual(self.answer_to(b"reboot"),
                         {"error": "'reboot' is no command: status, kick JOB, limit max-jobs JOBS, "
                                   "limit JOB STREAMS, drain, resume, capture FRAMES SECONDS "
                                   "BYTES or capture stop expected"})
        self.assertIn("256 bytes, not 257", self.answer_to(b"x" * 257)["error"])
        self.assertIn("is no command", self.answer_to(b"\xff\x00\x1b[2J")["error"])
        self.assertIn("is no command", self.answer_to(b"   ")["error"])

    def test_of_clients_that_say_nothing(self):
        """Even if others use all connections, a client with a command gets the place of the
        oldest."""
        daemon = self.start_commanded()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        silent = [self.connect() for _ in range(5 * CLIENTS)]
        self.wait_for_job(7, lambda shown: shown["active"])
        for client in silent:
            client.close()
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_in_settings(self):
        def refuses(status, *sayings, path, **settings):
            daemon = self.start("d", harness.program("sluice-aggregator"), "--vhost-dir",
                                self.directory("a1"), "--control-socket", path, **settings)
            self.ends_with(daemon, status, *sayings)

        self.start_commanded()
        refuses(1, f"socket '{self.socket}' cannot be served: another process serves it",
                path=self.socket)
        refuses(1, "/none/such' cannot be served: No such file", path=self.place + "/none/such")
        refuses(2, "control-socket must be a path of at most 107 bytes", path="/" + "x" * 107)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_of_who_may_give_none(self):
        for access, mode, member_may in (("owner", 0o600, False), ("group", 0o660, True)):
            daemon = self.start_commanded("--control-access", access, name=access)
            self.assertEqual(stat.S_IMODE(os.stat(self.socket).st_mode), mode)
            os.chmod(self.place, 0o755)
            for groups, may in (((), False), ((os.getegid(),), member_may)):
                asked = subprocess.run([CTL, "-s", self.socket, "jobs"], capture_output=True,
                                       text=True, user=65534, group=65534, extra_groups=groups)
                self.assertEqual(asked.returncode == 0, may, (access, groups, asked.stderr))
                if not may:
                    self.assertIn("Permission denied", asked.stderr)
            self.ends_on_signal(daemon)


if __name__ == "__main__":
    harness.main()
