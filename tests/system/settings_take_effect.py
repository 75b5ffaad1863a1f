"""Each setting of the daemon that no other test uses does what --help says, while
the daemon serves a job."""
import contextlib
import json
import os
import re
import signal
import socket
import struct
import unittest

import harness
from harness import af_packet, af_xdp

HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
MIB_OF_HUGE_PAGE = 2
ETHERNET, IPV4, UDP = 14, 20, 8  # bytes of headers
ETH_P_ALL = 3


class HugePages(harness.SystemTest):
    """The machine's hugepages; when a test ends, there are as many as before."""

    LITTLE = 128  # MiB

    def add_huge_pages(self, count):
        with open(HUGE_PAGES, encoding="ascii") as file:
            before = int(file.read())
        self.addCleanup(self.set_huge_pages, before)
        if self.set_huge_pages(before + count) < before + count:
            self.skipTest(f"needs {count} free pages of 2 MiB")

    @staticmethod
    def set_huge_pages(count):
        """Their number now."""
        with open(HUGE_PAGES, "r+", encoding="ascii") as file:
            file.write(str(count))
            file.flush()
            file.seek(0)
            return int(file.read())

    @staticmethod
    def free_huge_pages():
        with open("/proc/meminfo", encoding="ascii") as file:
            return int(re.search(r"HugePages_Free: +(\d+)", file.read()).group(1))

    @staticmethod
    def mib_of_huge_pages(process):
        with open(f"/proc/{process.popen.pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(kib) for kib in re.findall(r"_Hugetlb: +(\d+) kB", file.read())) >> 10


class Settings(HugePages):
    def serve(self, *flags, **settings):
        """A daemon, and a job that it serves."""
        daemon = self.start_daemon(*flags, **settings)
        return daemon, self.start_steady_job(2, daemon)

    def ends(self, daemon, job):
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    @staticmethod
    def threads(daemon):
        """The contents of /proc for each thread, by its id."""
        place = f"/proc/{daemon.popen.pid}/task"
        found = {}
        for thread in os.listdir(place):
            with open(f"{place}/{thread}/status", encoding="ascii") as file:
                found[thread] = dict(line.rstrip("\n").split(":\t", 1) for line in file)
            with open(f"{place}/{thread}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            found[thread]["cpu_s"] = ticks / os.sysconf("SC_CLK_TCK")
            found[thread]["sleeps"] = int(found[thread]["voluntary_ctxt_switches"])
        return found

    def lane(self, daemon, cpu_s=0.2):
        """The lane's thread, after it has used that much of the processor."""
        def cpu_s_of(thread):
            return self.threads(daemon)[thread]["cpu_s"]

        lane, = [thread for thread, status in self.threads(daemon).items()
                 if status["Name"] == "sluice-lane-0"]
        harness.wait_until(lambda: cpu_s_of(lane) > cpu_s, f"{cpu_s} s of processor time")
        return lane

    def sleeps_while_it_works(self, idle, cpu_s=0.3):
        """How often the lane sleeps in that much time of the processor, without a job."""
        daemon, job = self.serve("--idle", idle)
        lane = self.lane(daemon)
        self.end_steady_job(job)
        before = self.threads(daemon)[lane]
        harness.wait_until(lambda: self.threads(daemon)[lane]["cpu_s"] > before["cpu_s"] + cpu_s,
                           f"{cpu_s} s of processor time")
        sleeps = self.threads(daemon)[lane]["sleeps"] - before["sleeps"]
        self.ends_on_signal(daemon)
        return sleeps

    def test_idle_busy_spin_and_yield_never_sleep(self):
        for idle in ("busy-spin", "yield"):
            with self.subTest(idle=idle):
                self.assertLess(self.sleeps_while_it_works(idle), 10)

    def test_idle_backoff_sleeps(self):
        daemon, job = self.serve("--idle", "backoff")
        lane = self.lane(daemon, cpu_s=0.05)
        self.end_steady_job(job)
        before = self.threads(daemon)[lane]["sleeps"]
        harness.wait_until(lambda: self.threads(daemon)[lane]["sleeps"] > before + 100,
                           "the lane sleeps")
        self.ends_on_signal(daemon)

    def test_cpu_pins_the_lane_alone(self):
        core = max(os.sched_getaffinity(0))
        daemon, job = self.serve("--cpu", core)
        everywhere = self.threads(daemon)[str(daemon.popen.pid)]["Cpus_allowed_list"]
        pinned = [thread for thread in self.threads(daemon).values()
                  if thread["Cpus_allowed_list"] == str(core)]
        self.assertEqual(len(pinned), 1 if everywhere != str(core) else len(pinned))
        self.ends(daemon, job)

    def telemetry_sockets(self):
        return [os.path.join(place, name) for place, _, names in os.walk(self.place)
                for name in names if name.startswith("dpdk_telemetry")]

    def test_telemetry_tells_who_it_is(self):
        daemon, job = self.serve("--telemetry", "on")
        pid = daemon.popen.pid
        path, = [path for path in self.telemetry_sockets() if str(pid) in path]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(harness.TIME_LIMIT)
            client.connect(path)
            self.assertEqual(json.loads(client.recv(10_000))["pid"], pid)

            def ask(command):
                client.send(command.encode())
                return json.loads(client.recv(100_000))[command.partition(",")[0]]

            harness.wait_until(lambda: ask("/sluice/jobs"), "a job")
            (number, ranks), = ask("/sluice/jobs").items()
            self.assertEqual(ranks, len(job))
            harness.wait_until(lambda: ask(f"/sluice/job,{number}")["rounds"], "rounds")
            self.assertEqual(ask(f"/sluice/job,{number}")["present_ranks"], ranks)
            self.assertEqual(ask("/sluice/lane")["live_jobs"], 1)
            self.assertGreater(ask("/sluice/lane,0")["rounds_finished"], 0)
            for nothing in ("/sluice/lane,8", "/sluice/lane,-1", "/sluice/job,x", "/sluice/job"):
                self.assertIsNone(ask(nothing), nothing)
        self.ends(daemon, job)

    def test_no_telemetry(self):
        daemon = self.start_daemon("--telemetry", "off")
        self.assertEqual(self.telemetry_sockets(), [])
        self.ends(daemon, self.start_steady_job(2, daemon))

    def test_eal_args_reach_dpdk(self):
        daemon = self.start_daemon("--eal-args=--no-telemetry --log-level=lib.eal:debug",
                                   "--log-level", "debug")
        self.assertEqual(self.telemetry_sockets(), [])
        self.assertIn("dpdk: ", daemon.err)
        self.ends(daemon, self.start_steady_job(2, daemon))

    def test_log_rate_limit(self):
        """One line a second, although many ranks that disagree are refused."""
        daemon, job = self.serve("--log-rate-limit", 1)
        refused = []

        def suppressed():
            if not any(rank.is_running() for rank in refused):
                refused.extend(self.start_joiner(rank, 3 + rank, daemon, SLUICE_JOB=20 + job)
                               for job in range(3) for rank in range(2))
            return "suppressed" in daemon.err

        harness.wait_until(suppressed, "lines are kept out of the log")
        self.assertRegex(daemon.err, r"a join was refused(.|\n)*\.\.\. suppressed \d+ lines about "
                         "refused joins")
        self.ends(daemon, job)

    def lines_of(self, daemon, cause, line):
        """The number of lines written and of lines suppressed, for a cause."""
        written = len(re.findall(line, daemon.err))
        counted = re.findall(rf"suppressed (\d+) lines about {cause}$", daemon.err, re.M)
        return written, sum(map(int, counted))

    def test_log_rate_limit_of_jobs_that_form_and_end(self):
        """One host can make any number of them."""
        daemon = self.start_daemon("--log-rate-limit", 1)
        flood = ("import sluice, sys\n"
                 "with sluice.Context() as context:\n"
                 "    for job in range(100): context.join(job=job).close()\n")
        jobs = 0
        while not ("about formed jobs" in daemon.err and "about jobs that left" in daemon.err):
            self.all_end_well([self.start_rank(0, 1, daemon, harness.PYTHON_WITH_NUMPY, "-B", "-c",
                                               flood, **harness.python_environment())])
            jobs += 100
            self.assertLess(jobs, 5000, "no line is kept out of the log")
        self.ends_on_signal(daemon)
        for cause, line in (("formed jobs", ": formed, "), ("jobs that left", "ranks have left")):
            written, counted = self.lines_of(daemon, cause, line)
            self.assertEqual(written + counted, jobs, cause)

    def test_log_rate_limit_of_names_of_sockets(self):
        daemon = self.start_daemon("--log-rate-limit", 1, "--vhost-max-ports", 2)
        with contextlib.ExitStack() as workers:
            for number in range(40):
                workers.enter_context(self.refused_worker(f"worker{number}"))
            daemon.wait_to_say("suppressed")
            self.ends_on_signal(daemon)
        written, counted = self.lines_of(daemon, "refused local workers", " refused: all 2 vhost")
        refused = self.counter(daemon, "refused")  # including those that had a port for a while
        self.assertGreaterEqual(refused, 38)
        self.assertEqual(written + counted, refused)

    @contextlib.contextmanager
    def refused_worker(self, name):
        """A socket of this name for which the daemon has no port."""
        with socket.socket(socket.AF_UNIX) as worker:
            worker.bind(os.path.join(self.directory(), name + ".sluice"))
            worker.listen()
            yield

    def refuses_hostile_name(self, daemon):
        """The name of a socket, which would write further lines and change colours if it were
        printed."""
        with self.refused_worker('a\n{"b": 1}\x1b[31m\udcff'):
            daemon.wait_to_say("vhost ports are taken")

    def test_log_format_text(self):
        daemon, job = self.serve("--vhost-max-ports", 2)
        self.refuses_hostile_name(daemon)
        line, = [line for line in daemon.err.splitlines() if "refused" in line]
        self.assertIn(r'/a\n{"b": 1}\x1b[31m\xff.sluice refused: all 2 vhost ports', line)
        self.assertRegex(line, "^[ -~]+$")
        self.ends(daemon, job)

    def test_log_format_json(self):
        """Every line is an object, from the first to the last."""
        daemon = self.start_daemon("--log-format", "json", "--log-level", "debug",
                                   "--straggler-warning-ms", 100, "--vhost-max-ports", 2,
                                   "--stats-interval-s", 1)
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        self.refuses_hostile_name(daemon)
        job[1].send(signal.SIGSTOP)
        daemon.wait_to_say("straggler")
        job[1].kill()
        daemon.wait_to_say("aborted")
        self.ends_on_signal(daemon)
        lines = [json.loads(line) for line in daemon.err.splitlines()]
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual(line["process"], "sluice-aggregator")
            self.assertRegex(line["message"], "^[ -~]+$")
        self.assertIn("ready", [line["message"] for line in lines])
        self.assertTrue([line for line in lines if "at exit" in line["message"]])

        def event(name):
            found = [line for line in lines if line.get("event") == name and line["lane"] == 0]
            self.assertTrue(found, name)
            self.assertEqual(found[0]["job"], 7)
            return found[0]

        self.assertEqual(event("formed")["ranks"], 2)
        self.assertEqual(event("straggler")["rank"], 1)
        self.assertGreaterEqual(event("straggler")["waited_ms"], 100)
        self.assertEqual(event("aborted")["rank"], 1)
        self.assertEqual(event("aborted")["error"], "worker lost")
        self.assertIn("rank 1 is lost", event("aborted")["reason"])
        counters = {line["kind"]: line for line in lines if line.get("event") == "counters"}
        self.assertEqual(counters["counters"]["jobs_aborted"], 1)
        self.assertGreater(counters["ports"]["rx_datagrams"], 0)
        self.assertEqual(counters["local workers"]["attached"], 2)

    def test_log_format_json_of_a_refusal_to_start(self):
        """Once the settings are read, the daemon's last message is an object, too."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                                self.directory(), "--log-format", "json", "--metrics-listen", port)
            self.assertEqual(daemon.wait(), 1)
        last = json.loads(daemon.err.splitlines()[-1])
        self.assertEqual(last["level"], "error")
        self.assertIn("metrics-listen: ", last["message"])

    def test_log_file_is_opened_again_by_sighup(self):
        """As with logrotate: the file is moved, and the daemon continues in a new one."""
        directory = os.path.join(self.place, "logs")
        os.mkdir(directory)
        log, old = (os.path.join(directory, name) for name in ("log", "log.1"))
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--log-file", log)

        def wait_to_say(path, saying):
            def said():
                if not os.path.exists(path):
                    return False
                with open(path, encoding="utf-8") as file:
                    return re.search(saying, file.read())
            harness.wait_until(said, f"{saying} in {path}")

        wait_to_say(log, "ready")
        os.rename(log, old)
        daemon.send(signal.SIGHUP)
        wait_to_say(log, "reload: the log file was opened again")
        os.rename(log, old)
        os.mkdir(log)  # so it cannot be opened: no line is lost
        daemon.send(signal.SIGHUP)
        wait_to_say(old, "reload: the log goes on in the file that is open: log-file .*Is a direc")
        os.rmdir(log)
        self.ends_on_signal(daemon)
        wait_to_say(old, "sluice at exit")

    def test_log_file_has_a_refusal_to_start(self):
        log = os.path.join(self.place, "log")
        os.mkdir(self.directory())
        os.chmod(self.directory(), 0o777)
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--log-file", log)
        self.ends_with(daemon, 1, "^sluice-aggregator: vhost directory .* written by everybody")
        with open(log, encoding="utf-8") as file:
            self.assertRegex(file.read().splitlines()[-1],
                             " error sluice-aggregator: vhost directory .* written by everybody")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_log_format_journald(self):
        """The journal's directory is one of this test's, in a /run that only the daemon sees."""
        place = self.directory("journal")
        os.mkdir(place)
        os.mkdir(self.directory(), mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.settimeout(harness.TIME_LIMIT)
            journal.bind(os.path.join(place, "socket"))
            daemon = self.start(
                "daemon", "unshare", "--mount", "sh", "-c",
                "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && "
                f"mount --bind {place} /run/systemd/journal && exec \"$0\" \"$@\"",
                harness.program("sluice-aggregator"), "--vhost-dir", self.directory(),
                "--log-format", "journald")

            def next_with(message):
                while True:
                    entry = dict(line.split("=", 1)
                                 for line in journal.recv(100_000).decode().splitlines())
                    if re.search(message, entry["MESSAGE"]):
                        return entry

            self.assertEqual(next_with("^ready$"), {"MESSAGE": "ready", "PRIORITY": "6",
                                                    "SYSLOG_IDENTIFIER": "sluice-aggregator"})
            job = self.start_steady_job(2, self.address("a0"), SLUICE_JOB=7)
            formed = next_with("formed, 2 ranks")
            names = ("JOB", "LANE", "EVENT", "RANKS")
            self.assertEqual([formed["SLUICE_" + name] for name in names],
                             ["7", "0", "formed", "2"])
            self.end_steady_job(job)
            self.assertEqual(next_with("all 2 ranks have left")["SLUICE_EVENT"], "left")
            self.ends_on_signal(daemon)
        self.assertEqual(daemon.err, "")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_log_format_journald_without_a_journal(self):
        daemon = self.start(
            "daemon", "unshare", "--mount", "sh", "-c",
            "mount -t tmpfs none /run && exec \"$0\" \"$@\"",
            harness.program("sluice-aggregator"), "--vhost-dir", self.directory(), "--log-format",
            "journald")
        self.refuses(daemon, 1, "log-format journald: the journal's socket "
                     "'/run/systemd/journal/socket': No such file or directory")

    def test_reply_rate_limit(self):
        """A source that proves nothing gets no more answers; a rank that joins from another address
        does."""
        daemon, job = self.serve("--reply-rate-limit", 20)
        sender = self.start("garbage", harness.program("garbage_sender"), self.directory(), 7,
                            "rounds", 5)
        self.all_end_well([sender])
        self.ends(daemon, job)
        self.assertGreater(self.counter(daemon, "rate_limited"), 0)

    def test_integrity_on_a_local_port(self):
        """Where it is off by default; with it flipped bits do no harm."""
        flips = {"SLUICE_INTEGRITY": "on", "SLUICE_FAULTS": "seed=1,flip=0.05"}
        daemon = self.start_daemon("--integrity", "on", "--faults", "seed=2,flip=0.05")
        job = self.start_steady_job(2, daemon, elements=100_000, **flips)
        self.ends(daemon, job)
        self.assertGreater(self.counter(daemon, "bad_integrity"), 0)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_hugepages(self):
        """They are taken from the machine, and returned when the daemon ends."""
        self.add_huge_pages(80)
        free = self.free_huge_pages()
        daemon, job = self.serve("--hugepages", "on", "--memory-mib", self.LITTLE)
        self.assertGreaterEqual(self.mib_of_huge_pages(daemon), self.LITTLE)
        self.ends(daemon, job)
        self.assertEqual(self.free_huge_pages(), free)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_too_few_hugepages(self):
        self.add_huge_pages(8)
        wanted = MIB_OF_HUGE_PAGE * self.free_huge_pages() + self.LITTLE
        told = (rf"DPDK does not start with {wanted} MiB of hugepages: .*; free hugepages and "
                "access to them are expected")
        daemon = self.start("few", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory("few"), "--hugepages", "on", "--memory-mib", wanted)
        self.ends_with(daemon, 1, told)
        rank = self.start_joiner(0, 1, self.start_daemon(), SLUICE_HUGEPAGES="on",
                                 SLUICE_MEMORY_MIB=wanted)
        self.ends_with(rank, 3, told)


def sum_of_words(data):
    """Sum of 16-bit words, as in the checksums of IP (RFC 1071)."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class NetworkSettings(HugePages, harness.NetworkTest):
    def datagrams_from(self, interface, count=50):
        """UDP datagrams, with pseudo header and checksum, that come into the switch there."""
        found = []
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as tap:
            tap.bind((interface, ETH_P_ALL))  # until then it receives from no interface
            tap.settimeout(harness.TIME_LIMIT)
            while len(found) < count:
                frame, origin = tap.recvfrom(65536)
                ip = frame[ETHERNET:ETHERNET + IPV4]
                if origin[2] == socket.PACKET_OUTGOING or frame[12:14] != b"\x08\0" or ip[9] != 17:
                    continue
                udp = frame[ETHERNET + IPV4:ETHERNET + int.from_bytes(ip[2:4], "big")]
                found.append(ip[12:20] + b"\0\x11" + udp[4:6] + udp)
        return found

    def checksums_of(self, setting):
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0, "--udp-checksum", setting)
        job = self.start_steady_job(2, daemon)
        datagrams = self.datagrams_from("a0")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        return [(datagram[18:20], sum_of_words(datagram)) for datagram in datagrams]

    def test_udp_checksum_on(self):
        self.assertEqual({total for _, total in self.checksums_of("on")}, {0xffff})

    def test_udp_checksum_off(self):
        self.assertEqual({field for field, _ in self.checksums_of("off")}, {b"\0\0"})

    def test_integrity_off(self):
        """A rank without it can join then, which is refused by default on a network."""
        self.make_network(workers=2, aggregators=1)
        daemon = self.start_aggregator(0, "--integrity", "off")
        self.end_steady_job(self.start_steady_job(2, daemon, SLUICE_INTEGRITY="off"))
        self.ends_on_signal(daemon)

    def test_hugepages_of_all(self):
        """A daemon and its ranks."""
        self.add_huge_pages(3 * self.LITTLE // MIB_OF_HUGE_PAGE + 16)
        for driver in (af_packet.DRIVER, af_xdp.DRIVER):
            with self.subTest(driver=driver):
                self.make_network(workers=2, aggregators=1)
                self.network.driver = driver
                free = self.free_huge_pages()
                daemon = self.start_aggregator(0, "--hugepages", "on", "--memory-mib", self.LITTLE)
                job = self.start_steady_job(2, daemon, SLUICE_HUGEPAGES="on",
                                            SLUICE_MEMORY_MIB=self.LITTLE)
                for process in (daemon, *job):
                    self.assertGreaterEqual(self.mib_of_huge_pages(process), self.LITTLE)
                self.end_steady_job(job)
                self.ends_on_signal(daemon)
                # The kernel frees those of an AF_XDP socket some time after the process has ended.
                harness.wait_until(lambda: self.free_huge_pages() == free, "all are free again")

    def test_two_ports(self):
        """A job with one rank behind each port."""
        self.make_network(workers=2, aggregators=1)
        self.network.add_port(0, "port1")
        daemon = self.start_aggregator(0, "--port", "net_af_packet1,iface=port1",
                                       "--address", "10.78.0.1/16")
        stop = os.path.join(self.place, "stop")
        job = [self.start_rank(0, 2, daemon, "steady_job", stop),
               self.start_rank(1, 2, "10.78.0.1:4747", "steady_job", stop,
                               SLUICE_ADDRESS="10.78.1.2/16")]
        for rank in job:
            rank.stop_file = stop
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)


if __name__ == "__main__":
    harness.main()
