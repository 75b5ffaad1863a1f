"""A daemon that is terminated lets its jobs finish and logs its counters, within a bound; and
scripts leave no process behind."""
import os
import signal

import harness

LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait


class Daemons(harness.SystemTest):
    def test_told_to_end_while_idle(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            daemon = self.start_daemon("--drain-timeout-ms", LONG, name=f"a{signum}")
            self.end_steady_job(self.start_steady_job(2, daemon))
            self.ends_on_signal(daemon, signum)
            self.assertEqual(self.counter(daemon, "jobs_formed"), 1)
            self.assertGreater(self.counter(daemon, "rounds_finished"), 0)

    def test_told_to_end_lets_jobs_finish(self):
        daemon = self.start_daemon("--drain-timeout-ms", LONG)
        job = self.start_steady_job(2, daemon)
        daemon.send(signal.SIGTERM)
        daemon.wait_to_say("ending: waiting .* for 1 jobs to leave")
        self.end_steady_job(job)
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)

    def test_told_to_end_has_a_bound(self):
        daemon = self.start_daemon("--drain-timeout-ms", 200)
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=500)
        self.ends_on_signal(daemon)
        self.assertIn("ending: waiting 200 ms at most for 1 jobs to leave", daemon.err)
        self.ends_for_want_of_a_successor(job)

    def test_told_to_end_at_once(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=500)
        self.ends_on_signal(daemon)
        self.assertIn("the ranks of 1 jobs are told to go on at the next aggregator", daemon.err)
        self.ends_for_want_of_a_successor(job)

    def test_told_to_end_twice(self):
        daemon = self.start_daemon("--drain-timeout-ms", LONG)
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=500)
        daemon.send(signal.SIGTERM)
        daemon.wait_to_say("ending: waiting")
        self.ends_on_signal(daemon)
        self.ends_for_want_of_a_successor(job)

    def ends_for_want_of_a_successor(self, job):
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost",
                           "has ended, and nothing took its place within 500 ms")


class LostBuffers(harness.SystemTest):
    """Each of the daemon's pools seems to lack a buffer."""

    def test_fail_the_daemon(self):
        daemon = self.start_lossy_daemon()
        daemon.send(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 1)

    def test_fail_a_test_that_leaves_its_daemon_running(self):
        self.start_lossy_daemon()

    def start_lossy_daemon(self):
        return self.start_daemon(LD_PRELOAD=harness.program("libloses_a_buffer.so"))

    def check_buffers(self):
        with self.assertRaises(AssertionError):
            super().check_buffers()


class Cluster(harness.SystemTest):
    def test_interrupted_in_the_middle_of_a_run(self):
        cluster = self.start_cluster("--workers", 2, "--", "steady_job", self.place + "/never")
        cluster.wait_to_say("under way")
        children = self.processes_here()
        self.assertGreaterEqual(len(children), 4)  # the daemon, two ranks, the script itself
        cluster.send(signal.SIGINT)
        self.assertEqual(cluster.wait(), 130)
        self.assertEqual(self.processes_here(), [])
        left = [name for name in os.listdir(self.place) if not name.endswith((".out", ".err"))]
        self.assertEqual(left, [])

    def processes_here(self):
        """Ids of those whose environment names this test's directory."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.place.encode() in file.read():
                        found.append(int(pid))
            except OSError:
                continue  # it has ended, or is another user's
        return found


if __name__ == "__main__":
    harness.main()
