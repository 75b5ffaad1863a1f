"""Resources that may be missing: ports, memory, privileges, devices. Errors name each of them."""
import os
import shutil
import socket
import struct
import unittest

import harness

# <linux/if_packet.h>, and DPDK's kind of fanout group: by hash, with DEFRAG and ROLLOVER.
SOL_PACKET, PACKET_FANOUT, DPDKS_KIND, BY_CPU = 263, 18, 0x9000, 2
ETH_P_ALL = 3


class LocalPorts(harness.SystemTest):
    def test_one_worker_too_many(self):
        daemon = self.start_daemon("--vhost-max-ports", "2")
        job = self.start_steady_job(2, daemon)
        third = self.start_joiner(0, 1, daemon)
        self.refuses(third, 3, "unavailable", f"vhost:{self.directory()}: its aggregator took no "
                     "further worker; see its vhost-max-ports and its log")
        self.assertRegex(daemon.err, "local worker at .* refused: all 2 vhost ports are taken")
        self.end_steady_job(job)
        self.end_steady_job(self.start_steady_job(2, daemon))  # their ports are free again
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "refused"), 1)

    def test_a_directory_that_another_daemon_serves(self):
        first = self.start_daemon()
        job = self.start_steady_job(2, first)
        second = self.start("second", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory())
        self.ends_with(second, 1, f"directory '{self.directory()}' is in use by another aggregator")
        self.end_steady_job(job)
        self.ends_on_signal(first)

    def test_a_name_that_dpdk_cannot_take(self):
        daemon = self.start_daemon()
        path = os.path.join(self.directory(), "a=b.sluice")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            daemon.wait_to_say(f"local worker at {path} refused: socket path '{path}': a path "
                               "without '=' expected")

    def test_a_directory_that_nobody_serves(self):
        os.mkdir(self.directory())
        self.refuses(self.start_joiner(0, 1, "vhost:" + self.directory()), 3, "unavailable",
                     f"vhost:{self.directory()}: no aggregator serves this directory")
        self.assertEqual(os.listdir(self.directory()), [])

    def test_a_directory_whose_daemon_is_dead(self):
        daemon = self.start_daemon()
        daemon.kill()
        self.refuses(self.start_joiner(0, 1, daemon), 3, "unavailable",
                     "no aggregator serves this directory")

    def test_a_worker_may_come_first(self):
        os.mkdir(self.directory(), mode=0o700)
        rank = self.start_joiner(0, 1, "vhost:" + self.directory())
        harness.wait_until(lambda: harness.has_dpdk(rank), "it looks for a daemon")
        self.start_daemon()
        rank.wait_to_say("under way")


class Directories(harness.SystemTest):
    def test_that_everybody_may_write_to(self):
        os.mkdir(self.directory())
        os.chmod(self.directory(), 0o777)
        self.refuses(self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                                self.directory()), 1, "can be written by everybody")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_for_dpdk_that_somebody_else_made(self):
        """Without XDG_RUNTIME_DIR it is a directory in /tmp whose name anybody can guess."""
        guessed = os.path.join(self.place, "sluice-65534")
        os.mkdir(guessed)
        os.chown(guessed, 1, 1)
        os.chmod(self.place, 0o777)
        daemon = self.start("daemon", "/usr/bin/env", "-u", "XDG_RUNTIME_DIR",
                            harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), TMPDIR=self.place,
                            before_exec=harness.become_nobody)
        daemon.wait_to_say(harness.READY)
        self.ends_on_signal(daemon)
        self.assertEqual(os.listdir(guessed), [])
        self.assertEqual([name for name in os.listdir(self.place) if "sluice-65534-" in name], [])

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_where_others_have_planted_files(self):
        """Obstacles of every kind, at each name that the daemon uses for a file of its own."""
        secret = os.path.join(self.place, "secret")
        with open(secret, "w", encoding="ascii") as file:
            file.write("a secret")
        for kind in (os.mkfifo, lambda path: os.symlink(secret, path), self.plant_file,
                     self.plant_directory, self.plant_socket):
            os.mkdir(self.directory())
            names = ("lanes", "lanes.new", "lock", "control")
            for name in names:
                path = os.path.join(self.directory(), name)
                kind(path)
                os.lchown(path, 1, 1)
            os.chmod(self.directory(), 0o3770)
            control = os.path.join(self.directory(), "control")
            daemon = self.start_daemon("--control-socket", control)
            self.assertEqual(os.stat(os.path.join(self.directory(), "lanes")).st_uid, 0)
            self.end_steady_job(self.start_steady_job(1, daemon))
            self.ends_on_signal(daemon)
            with open(secret, encoding="ascii") as file:
                self.assertEqual(file.read(), "a secret")
            shutil.rmtree(self.directory())

    @staticmethod
    def plant_file(path):
        with open(path, "w", encoding="ascii") as file:
            file.write("8")

    @staticmethod
    def plant_directory(path):
        os.mkdir(path)
        with open(os.path.join(path, "full"), "w", encoding="ascii"):
            pass

    def plant_socket(self, path):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(server.close)
        server.bind(path)
        server.listen()

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_where_others_hold_locks(self):
        """All names that others can take: of the directory, and of files that a daemon left
        behind."""
        os.mkdir(self.directory())
        os.chmod(self.directory(), 0o755)
        os.chmod(self.place, 0o711)
        self.start_daemon().kill()
        script = ("import fcntl, os, signal, sys\n"
                  "for path in [sys.argv[1]] + [os.path.join(sys.argv[1], name)\n"
                  "                             for name in os.listdir(sys.argv[1])]:\n"
                  "    try:\n"
                  "        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)\n"
                  "        print('holds', path)\n"
                  "    except OSError:\n"
                  "        pass\n"
                  "print('all', flush=True)\n"
                  "signal.pause()\n")
        other = self.start("nobody", harness.DEBIAN_PYTHON, "-c", script, self.directory(),
                           before_exec=harness.become_nobody)
        other.wait_to_say("all")
        self.assertRegex(other.out, "holds .*/lanes")
        self.assertNotRegex(other.out, "holds .*/lock")
        daemon = self.start_daemon()
        self.end_steady_job(self.start_steady_job(1, daemon))
        self.ends_on_signal(daemon)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OtherUsers(harness.SystemTest):
    """The daemon runs as nobody, the ranks as root."""

    def start_daemon_of_nobody(self, mode):
        os.chmod(self.place, 0o711)
        os.mkdir(self.directory())
        os.chown(self.directory(), 65534, 65534)
        os.chmod(self.directory(), mode)
        return self.start_daemon(before_exec=harness.become_nobody)

    def test_reach_each_other_in_a_directory_of_their_group(self):
        daemon = self.start_daemon_of_nobody(0o3770)
        job = self.start_steady_job(2, daemon)
        self.end_steady_job(job)

    def test_find_a_lock_of_roots(self):
        os.chmod(self.place, 0o711)
        os.makedirs(os.path.join(self.directory(), "lock"))
        os.chown(self.directory(), 65534, 65534)
        self.ends_with(self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                                  self.directory(), before_exec=harness.become_nobody), 1,
                       f"'{self.directory()}/lock' cannot be written: it is no plain file, and "
                       "belongs to user 0; remove it")

    def test_reach_nobody_else_in_a_directory_of_their_own(self):
        daemon = self.start_daemon_of_nobody(0o700)
        rank = self.start_joiner(0, 1, daemon, SLUICE_CONNECT_TIMEOUT_MS=1000)
        self.ends_with(rank, 3, "unavailable", "its aggregator took no further worker")


    def test_who_lacks_permission_is_told_which(self):
        """Ranks of a user outside the daemon's group, and in a directory that nobody may enter."""
        os.chmod(self.place, 0o711)
        os.mkdir(self.directory())
        os.chmod(self.directory(), 0o3770)
        daemon = self.start_daemon()
        for mode, path, what in ((0o711, self.directory(), "create sockets in '{}', which has mode "
                                  "03770, user 0 and group 0; be a member of that group"),
                                 (0o700, self.place, "enter '{}', which has mode 0700")):
            with self.subTest(mode=oct(mode)):
                os.chmod(self.place, mode)
                rank = self.start_joiner(0, 1, daemon, before_exec=harness.become_nobody)
                self.refuses(rank, 3, "unavailable", "permission is missing: user 65534 may not "
                             + what.format(path))
        os.chmod(self.place, 0o711)
        self.ends_on_signal(daemon)


class Memory(harness.SystemTest):
    def test_too_little_for_the_daemon(self):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--memory-mib", "70")
        self.refuses(daemon, 2, "memory-mib = 70 .flag --memory-mib.: one job .* needs \\d+")

    def test_more_than_the_machine_has(self):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--memory-mib", "1048576")
        self.refuses(daemon, 1, "1048576 MiB of packet memory are wanted, and this machine has")

    def test_too_little_for_a_worker(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon)
        self.refuses(self.start_joiner(0, 1, daemon, SLUICE_MEMORY_MIB=33), 3, "invalid argument",
                     "memory_mib is 33, but .* alone take \\d+")
        self.refuses(self.start_joiner(0, 1, daemon, SLUICE_MEMORY_MIB=40), 3, "unavailable",
                     "needs \\d+ packet buffers",
                     "set memory_mib .SLUICE_MEMORY_MIB. to at least \\d+")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_too_little_for_one_rank_of_a_job(self):
        daemon = self.start_daemon()
        poor = self.start_joiner(1, 2, daemon, SLUICE_MEMORY_MIB=40)
        other = self.start_joiner(0, 2, daemon)
        self.ends_with(poor, 3, "unavailable", "needs \\d+ packet buffers")
        self.ends_with(other, 3, "formation failed about rank 1",
                       "rank 1 has too few packet buffers for the job")
        self.ends_on_signal(daemon)

    def test_the_memory_asked_for_suffices(self):
        daemon = self.start_daemon()
        refused = self.start_joiner(0, 1, daemon, SLUICE_MEMORY_MIB=40)
        needed = refused.wait_to_say(r"to at least (\d+)").group(1)
        self.end_steady_job(self.start_steady_job(1, daemon, SLUICE_MEMORY_MIB=needed))

    def test_the_memory_asked_for_suffices_for_more(self):
        """One process joins job after job until its memory is not sufficient, and the error names
        the memory for that job, and for three more."""
        daemon = self.start_daemon()
        join = ("import sluice\n"
                "with sluice.Context() as context:\n"
                "    jobs = []\n"
                "    while True:\n"
                "        jobs.append(context.join(job=len(jobs)))\n"
                "        print('jobs', len(jobs), flush=True)\n")

        def joined(**settings):
            rank = self.start_rank(0, 1, daemon, harness.PYTHON_WITH_NUMPY, "-B", "-c", join,
                                   **harness.python_environment(), **settings)
            asked = rank.wait_to_say(r"to at least (\d+), and (\d+) more for each further one")
            self.assertEqual(rank.wait(), 1)
            return rank.out.count("jobs"), int(asked.group(1)), int(asked.group(2))

        few, least, each = joined(SLUICE_MEMORY_MIB=60)
        self.assertGreater(few, 0)
        many, *_ = joined(SLUICE_MEMORY_MIB=least + 3 * each)
        self.assertGreaterEqual(many, few + 4)

    def test_a_jobs_quota(self):
        daemon = self.start_daemon("--job-memory-mib", "1")
        self.refuses(self.start_joiner(0, 1, daemon, SLUICE_STREAMS=64), 3, "quota",
                     "does not accept memory in MiB \\d+; its limit is 1. Raise the aggregator's "
                     "job-memory-mib")
        self.end_steady_job(self.start_steady_job(1, daemon))  # gets as many streams as fit
        self.ends_on_signal(daemon)


class Devices(harness.SystemTest):
    def daemon_on(self, device, before_exec=None, flags=()):
        return self.start("daemon", harness.program("sluice-aggregator"), "--port", device,
                          "--address", "10.99.0.1/24", *flags, before_exec=before_exec)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_no_such_interface(self):
        self.ends_with(self.daemon_on("net_af_packet0,iface=nosuch0"), 1,
                       "^sluice-aggregator: port 'net_af_packet0,iface=nosuch0")

    def test_no_such_pci_device(self):
        """Checked before DPDK is started, as its start takes hugepages."""
        self.refuses(self.daemon_on("0000:ff:1f.7", flags=("--pci", "on", "--hugepages", "on")), 1,
                     "^sluice-aggregator: port '0000:ff:1f.7': this machine has no PCI device "
                     "0000:ff:1f.7$")

    def test_no_such_driver(self):
        self.ends_with(self.daemon_on("net_nosuch0"), 1,
                       "^sluice-aggregator: port 'net_nosuch0'.*cannot be opened")

    def test_no_privilege(self):
        drop = harness.become_nobody if os.geteuid() == 0 else None
        os.chmod(self.place, 0o777)
        self.ends_with(self.daemon_on("net_af_packet0,iface=lo", drop), 1,
                       "^sluice-aggregator: port 'net_af_packet0,iface=lo",
                       "privilege is missing: CAP_NET_RAW")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_a_fanout_group_that_somebody_has(self):
        """The number that DPDK gives to groups: 16 bits of the PID and of the interface's index."""
        for kind in (DPDKS_KIND, BY_CPU):
            keep, give = socket.socketpair()

            def take_group(give=give, kind=kind):
                number = (os.getpid() ^ socket.if_nametoindex("lo")) & 0xffff
                with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as other:
                    other.bind(("lo", ETH_P_ALL))
                    other.setsockopt(SOL_PACKET, PACKET_FANOUT,
                                     struct.pack("=I", number | kind << 16))
                    socket.send_fds(give, [b"it"], [other.fileno()])

            with self.subTest(kind=kind), keep, give:
                daemon = self.daemon_on("net_af_packet0,iface=lo", take_group)
                self.ends_with(daemon, 1, r"^sluice-aggregator: port 'net_af_packet0,iface=lo.*: "
                               rf"packet fanout group \d+ is taken: .* PID .{daemon.popen.pid}.",
                               "Start this process again")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_an_address_in_use(self):
        first = self.daemon_on("net_af_packet0,iface=lo")
        first.wait_to_say(r"\bready\b")
        self.ends_with(self.daemon_on("net_af_packet0,iface=lo"), 1,
                       "UDP port 10.99.0.1:4747 is in use by another process of this machine")
        self.ends_on_signal(first)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_an_address_that_another_user_pretends_to_use(self):
        script = ("import signal, socket\n"
                  "held = [socket.socket(socket.AF_UNIX, kind) for kind in (1, 2, 5)]\n"
                  "for one in held[:2]:\n"
                  "    try:\n"
                  "        one.bind('\\0sluice 10.99.0.1:4747')\n"
                  "    except OSError:\n"
                  "        pass\n"
                  "held[0].listen(0)\n"
                  "print('holds', flush=True)\n"
                  "signal.pause()\n")
        other = self.start("nobody", harness.DEBIAN_PYTHON, "-c", script,
                           before_exec=harness.become_nobody)
        other.wait_to_say("holds")
        first = self.daemon_on("net_af_packet0,iface=lo")
        first.wait_to_say(harness.READY)
        self.ends_with(self.daemon_on("net_af_packet0,iface=lo"), 1,
                       "UDP port 10.99.0.1:4747 is in use by another process of this machine")
        self.ends_on_signal(first)


if __name__ == "__main__":
    harness.main()
