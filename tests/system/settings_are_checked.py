"""A wrong setting is reported with its value and what is allowed, in one line, before anything
else."""
import os

import harness


class Daemon(harness.SystemTest):
    def refused(self, flags, *sayings, **variables):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), *flags, **variables)
        self.refuses(daemon, 2, "^sluice-aggregator: ", *sayings)

    def test_values_of_flags(self):
        place = ["--vhost-dir", self.directory()]
        for flags, sayings in (
                (["--streams", "0"], ("streams must be 1..1024, not '0'", "flag --streams")),
                (["--streams", "many"], ("streams must be 1..1024, not 'many'",)),
                (["--history", "3"], ("history must be a power of two, 2..64, not '3'",)),
                (["--mtu", "9699"], ("mtu must be 576..9698, not '9699'",)),
                (["--idle", "sleep"], ("idle must be .*back-?off.*, not 'sleep'",)),
                (["--address", "10.0.0.300/24"], ("address", "'10.0.0.300/24'")),
                (["--no-such-setting"], ("unknown flag 'no-such-setting'",)),
                (["--streems", "4"], ("did you mean 'streams'",)),
                (["extra"], ("unexpected argument 'extra'",)),
                (["--cpu", "1000"], ("cpu = 1000 .flag --cpu.: this process cannot run there; "
                                     r"the machine has \d",)),
                (["--shard", "2", "--shards", "2"], ("shard = 2 .*must be below shards = 2",)),
        ):
            with self.subTest(flags=flags):
                self.refused(place + flags, *sayings)

    def test_no_way_to_reach_it(self):
        self.refused([], "neither vhost-dir nor port is set")

    def test_a_directory_that_cannot_be(self):
        self.refused(["--vhost-dir", self.place + "/no/such"], "'.*/no' must exist")
        path = os.path.join(self.place, "file")
        with open(path, "w", encoding="ascii"):
            pass
        self.refused(["--vhost-dir", path], "must be a directory")
        self.refused(["--vhost-dir", self.place + "/" + "x" * 120], "at most")

    def test_the_example_for_one_machine_needs_no_root(self):
        """Started by any user with a run-time directory of their own."""
        home = os.path.join(self.place, "run")
        os.makedirs(home)
        os.chmod(self.place, 0o755)
        if os.geteuid() == 0:
            os.chown(home, 65534, 65534)
        daemon = self.start(
            "daemon", harness.program("sluice-aggregator"),
            "--config", os.path.join(harness.ROOT, "configs", "vhost.conf"),
            before_exec=harness.become_nobody if os.geteuid() == 0 else None,
            XDG_RUNTIME_DIR=home, RUNTIME_DIRECTORY=home)
        daemon.wait_to_say(r"\bready\b")
        self.assertTrue(os.path.isdir(os.path.join(home, "sluice")))

    def test_a_user_without_a_runtime_directory(self):
        config = os.path.join(harness.ROOT, "configs", "vhost.conf")
        self.refused(["--config", config], "vhost-dir", "XDG_RUNTIME_DIR is not set",
                     XDG_RUNTIME_DIR="")

    def test_values_of_variables_and_files(self):
        self.refused([], "max-jobs must be 1..4096, not '0' .variable SLUICE_AGGREGATOR_MAX_JOBS",
                     SLUICE_AGGREGATOR_MAX_JOBS=0)
        path = os.path.join(self.place, "settings.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write("# a comment\nvhost-dir = /tmp\nmax-jobs = 5000\n")
        self.refused(["--config", path], f"max-jobs must be 1..4096, not '5000' .{path}:3")
        self.refused(["--config", path + "x"], "must be a file that this user can read")

    def test_arguments_that_dpdk_refuses(self):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--", "--no-such-argument")
        self.ends_with(daemon, 2, "^sluice-aggregator: DPDK does not start")
        self.assertIn("unrecognized option '--no-such-argument'", daemon.err)

    def test_check_config_starts_nothing(self):
        check = self.start("check", harness.program("sluice-aggregator"), "--vhost-dir",
                           self.directory(), "--streams", "8", "--check-config")
        self.assertEqual(check.wait(), 0)
        self.assertRegex(check.out, r"streams = 8 +# flag --streams")
        self.assertFalse(os.path.exists(self.directory()))

    def test_check_config_and_the_start_refuse_the_same(self):
        os.mkdir(self.directory("open"))
        os.chmod(self.directory("open"), 0o777)
        occupied = self.directory("occupied")
        os.makedirs(occupied)
        missing = os.path.join(self.place, "missing", "control")
        for flags, saying in (
                (["--vhost-dir", self.directory("open")], "vhost directory .* can be written by"),
                (["--vhost-dir", self.directory(), "--control-socket", missing],
                 f"socket '{missing}' cannot be served: No such file"),
                (["--vhost-dir", self.directory(), "--control-socket", occupied],
                 f"socket '{occupied}' cannot be served: there is something else of this name"),
                (["--vhost-dir", self.directory(), "--memory-mib", "1048576"],
                 "1048576 MiB of packet memory are wanted"),
                (["--vhost-dir", self.directory(), "--metrics-listen", "192.0.2.1:9"],
                 "metrics-listen: cannot serve HTTP at 192.0.2.1:9: Cannot assign"),
                (["--port", "ffff:ff:1f.7", "--pci", "on", "--address", "10.0.0.1/24"],
                 "port 'ffff:ff:1f.7': this machine has no PCI device")):
            for more in (["--check-config"], []):
                with self.subTest(flags=flags + more):
                    daemon = self.start("daemon", harness.program("sluice-aggregator"), *flags,
                                        *more)
                    self.ends_with(daemon, 1, "^sluice-aggregator: " + saying)
                    self.assertEqual(daemon.out, "")
                    self.assertFalse(os.path.exists(self.directory()))

    def test_check_config_while_a_daemon_runs_with_it(self):
        control = os.path.join(self.place, "control")
        flags = ["--control-socket", control, "--metrics-listen"]
        daemon = self.start_daemon(*flags, "127.0.0.1:0")
        port = daemon.wait_to_say(r"metrics at http://127.0.0.1:(\d+)/").group(1)
        check = self.start("check", harness.program("sluice-aggregator"), "--vhost-dir",
                           self.directory(), *flags, f"127.0.0.1:{port}", "--check-config")
        self.assertEqual(check.wait(), 0, check.err)
        self.assertIn("the settings are valid", check.out)
        self.end_steady_job(self.start_steady_job(1, daemon))
        self.ends_on_signal(daemon)

    def test_print_config_can_be_read_back(self):
        flags = ["--vhost-dir", self.directory(), "--streams", "8", "--print-config"]
        first = self.start("first", harness.program("sluice-aggregator"), *flags,
                           SLUICE_AGGREGATOR_IDLE="yield")
        self.assertEqual(first.wait(), 0)
        self.assertRegex(first.out, r"streams = 8 +# flag --streams")
        self.assertRegex(first.out, r"idle = yield +# variable SLUICE_AGGREGATOR_IDLE")
        path = os.path.join(self.place, "printed.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write(first.out)
        second = self.start("second", harness.program("sluice-aggregator"), "--config", path,
                            "--print-config")
        self.assertEqual(second.wait(), 0)
        self.assertRegex(second.out, f"idle = yield +# {path}:[0-9]+")
        values = [[line.split("  # ")[0] for line in printed.splitlines() if " = " in line]
                  for printed in (first.out, second.out)]
        self.assertEqual(*values)
        self.assertFalse(os.path.exists(self.directory()))


class Rank(harness.SystemTest):
    def refused(self, *sayings, **settings):
        rank = self.start_joiner(0, 1, "vhost:" + self.place, **settings)
        self.refuses(rank, 3, "invalid argument", *sayings)

    def test_values_of_variables(self):
        for variable, value, saying in (
                ("SLUICE_RANK", "x", "SLUICE_RANK must be 0..0, not 'x'"),
                ("SLUICE_RANK", "1", "SLUICE_RANK must be 0..0, not '1' .SLUICE_WORLD_SIZE is 1"),
                ("SLUICE_RANK", "-1", "not '-1'"),
                ("SLUICE_WORLD_SIZE", "0", "SLUICE_WORLD_SIZE must be 1..256, not '0'"),
                ("SLUICE_WORLD_SIZE", "257", "SLUICE_WORLD_SIZE must be 1..256, not '257'"),
                ("SLUICE_AGGREGATORS", "nowhere", "SLUICE_AGGREGATORS.* not 'nowhere'"),
                ("SLUICE_HOST", "a b", "SLUICE_HOST must be a name of 1..32 letters"),
                ("SLUICE_HOST_PROCESS_VM", "half", "SLUICE_HOST_PROCESS_VM must be .*, not 'half'"),
                ("SLUICE_HOST_LEVEL", "half", "SLUICE_HOST_LEVEL must be .*, not 'half'"),
                ("SLUICE_AGGREGATORS", "10.0.0.1", "SLUICE_PORT"),
                ("SLUICE_MTU", "100", "SLUICE_MTU must be 0 or 576..9698, not '100'"),
                ("SLUICE_MEMORY_MIB", "1", "SLUICE_MEMORY_MIB must be 0 or 16..1048576, not '1'"),
                ("SLUICE_STREAMS", "2000", "SLUICE_STREAMS must be 0..1024, not '2000'"),
                ("SLUICE_HISTORY", "5", "SLUICE_HISTORY must be .*, not '5'"),
                ("SLUICE_JOB", "4294967296", "SLUICE_JOB must be 0..4294967295"),
                ("SLUICE_IDLE", "sleep", "SLUICE_IDLE must be .*, not 'sleep'"),
                ("SLUICE_LOG", "loud", "SLUICE_LOG must be .*, not 'loud'"),
                ("SLUICE_JOIN_TIMEOUT_MS", "0", "SLUICE_JOIN_TIMEOUT_MS must be 1..3600000"),
        ):
            with self.subTest(variable=variable, value=value):
                self.refused(saying, **{variable: value})

    def test_half_a_placement(self):
        self.refused("SLUICE_RANK = '0' is set, but SLUICE_WORLD_SIZE is not",
                     SLUICE_WORLD_SIZE="")


if __name__ == "__main__":
    harness.main()
