"""Later mistakes of an operator: a full disk, too few descriptors, a bad file at a reload. The
daemon reports them once, clearly, and continues to serve."""
import itertools
import os
import re
import resource
import signal
import unittest

import harness

OLD_SECRET = "the-first-secret-of-all-jobs"
NEW_SECRET = "the-second-secret-of-all-jobs"


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class FullDisk(harness.SystemTest):
    def test_for_the_log(self):
        """The log has one page of a file system that only the daemon sees."""
        disk = os.path.join(self.place, "disk")
        for path in (disk, self.directory()):
            os.mkdir(path, mode=0o700)
        daemon = self.start(
            "daemon", "unshare", "--mount", "sh", "-c",
            f"mount -t tmpfs -o size=4k none {disk} && exec \"$0\" \"$@\"",
            harness.program("sluice-aggregator"), "--vhost-dir", self.directory(), "--log-file",
            os.path.join(disk, "log"), "--log-level", "debug", "--stats-interval-s", 1)
        job = self.start_steady_job(2, self.address("a0"))
        daemon.wait_to_say(r"log: .*No space left on device.* \(4 failures so far\)")
        self.end_steady_job(job)
        self.end_steady_job(self.start_steady_job(2, self.address("a0")))
        self.ends_on_signal(daemon)
        self.assertEqual(os.listdir(disk), [])


class SizeOfFiles(harness.SystemTest):
    """A limit that a signal would enforce (ulimit -f)."""

    @staticmethod
    def at_most_a_mebibyte():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    def test_too_small_for_packet_memory(self):
        says = r"packet memory of \d+ MiB: files may have at most 1048576 bytes here \(ulimit -f\)"
        self.refuses(self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                                self.directory("a1"), before_exec=self.at_most_a_mebibyte), 1, says)
        daemon = self.start_daemon()
        self.refuses(self.start_rank(0, 1, daemon, "steady_job", self.place + "/never", 100, 1,
                                     before_exec=self.at_most_a_mebibyte), 3, says)
        self.ends_on_signal(daemon)

    def test_too_small_for_the_log(self):
        """Lines are lost, as on a full disk."""
        log = os.path.join(self.place, "log")
        watched = self.start("watched", harness.program("sluice-aggregator"), "--vhost-dir",
                             self.directory("a1"), "--log-file", log)
        harness.wait_until(lambda: os.path.exists(log) and "ready" in self.read(log), "it serves")
        resource.prlimit(watched.popen.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        while "File too large" not in watched.err:
            self.assertTrue(watched.is_running(), watched.report())
            self.end_steady_job(self.start_steady_job(1, self.address("a1")))
        self.ends_on_signal(watched)

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8") as file:
            return file.read()


class Descriptors(harness.SystemTest):
    @staticmethod
    def at_most(count):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    def test_too_few_for_the_daemon(self):
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), before_exec=self.at_most(8))
        self.assertIn(daemon.wait(), (1, 2))
        self.assertRegex(daemon.err.splitlines()[-1], "^sluice-aggregator: ")

    def test_too_few_for_another_worker(self):
        """The daemon has none left after the first job has come, and some again later."""
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon)
        pid = daemon.popen.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        taken = 1 + max(map(int, os.listdir(f"/proc/{pid}/fd")))
        # From some, so that it takes the worker by halves, to none at all: a descriptor that was
        # open for a moment may have been counted, so that zero is not always none.
        for spare in itertools.count(4, -2):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + spare, limits[1]))
            late = self.start_joiner(0, 1, daemon, SLUICE_CONNECT_TIMEOUT_MS=1500,
                                     SLUICE_JOIN_TIMEOUT_MS=1500)
            self.ends_with(late, 3, "its aggregator took no further worker.* its log|unreachable")
            if spare <= 0 and "cannot be read: Too many open files" in daemon.err:
                break
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        self.end_steady_job(job)
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.ends_on_signal(daemon)


class Reload(harness.SystemTest):
    def setUp(self):
        self.settings = os.path.join(self.place, "settings.conf")
        self.secrets = os.path.join(self.place, "secrets")
        self.write(self.secrets, f"* {OLD_SECRET}\n")
        self.write_settings()
        self.daemon = self.start_daemon("--config", self.settings, "--secret-file", self.secrets)

    def write(self, path, text):
        """Replaces a file as an editor does: completely, and readable only by its owner."""
        new = path + ".new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w",
                  encoding="ascii") as file:
            file.write(text)
        os.replace(new, path)

    def write_settings(self, *lines):
        self.write(self.settings, "\n".join(lines) + "\n")

    def reload(self, saying):
        """The daemon's log about it, from the last SIGHUP on."""
        before = len(self.daemon.err)
        self.daemon.send(signal.SIGHUP)
        self.daemon.wait_to_say(rf"(?s)\A.{{{before}}}.*{saying}")
        return self.daemon.err[before:]

    def test_good_settings(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_JOB=7, SLUICE_SECRET=OLD_SECRET)
        self.write_settings("log-level = debug", "straggler-warning-ms = 150")
        self.reload("reload: log-level = debug, was info")
        self.daemon.wait_to_say("reload: straggler-warning-ms = 150 ?.*, was ")
        job[1].send(signal.SIGSTOP)
        self.daemon.wait_to_say("ms for rank 1")
        job[1].send(signal.SIGCONT)
        self.reload("reload: no change")
        self.end_steady_job(job)
        self.ends_on_signal(self.daemon)

    def test_another_secret(self):
        """Running jobs keep their secret; ranks that join from now on prove the new one."""
        old = self.start_steady_job(2, self.daemon, SLUICE_SECRET=OLD_SECRET)
        self.write(self.secrets, f"* {NEW_SECRET}\n")
        said = self.reload("reload: .*secret")
        self.assertNotIn(OLD_SECRET, said)
        self.assertNotIn(NEW_SECRET, said)
        self.end_steady_job(self.start_steady_job(2, self.daemon, SLUICE_SECRET=NEW_SECRET))
        late = self.start_joiner(0, 1, self.daemon, SLUICE_JOB=8, SLUICE_SECRET=OLD_SECRET)
        self.refuses(late, 3, "not authenticated", "did not prove the job's secret")
        self.end_steady_job(old)
        self.ends_on_signal(self.daemon)

    def test_bad_files(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_SECRET=OLD_SECRET)
        for lines, secret, saying in (
                (["log-level = loud"], OLD_SECRET, "log-level must be .*, not 'loud'"),
                (["log-level = debug", "no-such-setting = 1"], OLD_SECRET, "no-such-setting"),
                (["log-level = debug"], "short", "a secret has|16"),
        ):
            with self.subTest(saying=saying):
                self.write_settings(*lines)
                self.write(self.secrets, f"* {secret}\n")
                said = self.reload("error .*reload: nothing was changed: .*(" + saying + ")")
                self.assertEqual(len(re.findall("reload:", said)), 1, said)
                self.assertNotIn(secret, said)
        os.unlink(self.settings)
        self.reload("reload: nothing was changed: .*settings.conf")
        self.end_steady_job(job)
        self.end_steady_job(self.start_steady_job(2, self.daemon, SLUICE_SECRET=OLD_SECRET))
        self.assertNotIn(" debug ", self.daemon.err)
        self.ends_on_signal(self.daemon)

    def test_settings_that_need_a_restart(self):
        self.write_settings("streams = 8", "log-level = warn")
        said = self.reload("reload: needs a restart: streams = 8, was 64")
        self.assertIn("reload: log-level = warn, was info", said)
        self.end_steady_job(self.start_steady_job(2, self.daemon, SLUICE_SECRET=OLD_SECRET))
        self.assertEqual(self.daemon.is_running(), True)


if __name__ == "__main__":
    harness.main()
