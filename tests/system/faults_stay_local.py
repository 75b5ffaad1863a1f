"""What dies or misbehaves is named to those it concerns, at once, and disturbs nobody else."""
import os
import signal
import time

import harness

LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait


class Workers(harness.SystemTest):
    def test_a_killed_worker(self):
        """Its port hangs up: nobody waits for a time-out, and the job is joined again at once."""
        daemon = self.start_daemon("--liveness-timeout-ms", LONG)
        bystander = self.start_steady_job(2, daemon)
        for life in range(2):
            job = self.start_steady_job(3, daemon, elements=500_000, SLUICE_JOB=7,
                                        SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
            job[1].send(signal.SIGKILL)
            for rank in (job[0], job[2]):
                self.refuses_late(rank, "worker lost about rank 1",
                                  "job 7: rank 1 is dead: its port hung up")
        again = self.start_steady_job(3, daemon, SLUICE_JOB=7)
        self.end_steady_job(again)
        self.end_steady_job(bystander)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 2)
        self.assertEqual(self.counter(daemon, "jobs_left"), 2)

    def test_a_worker_that_hangs(self):
        """Its port stays, so the liveness time-out ends the job."""
        daemon = self.start_daemon("--liveness-timeout-ms", 1500)
        bystander = self.start_steady_job(2, daemon)
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        job[1].send(signal.SIGSTOP)
        self.refuses_late(job[0], "worker lost about rank 1",
                          "job 7: rank 1 is dead: silent for 1[56]\\d\\d ms")
        job[1].send(signal.SIGCONT)
        self.refuses_late(job[1], "worker lost about rank 1", "rank 1 is dead: silent for")
        self.end_steady_job(bystander)
        self.ends_on_signal(daemon)

    def test_two_aggregators_agree_on_the_loss(self):
        daemons = [self.start_daemon("--shard", s, "--shards", 2, "--liveness-timeout-ms", LONG,
                                     name=f"a{s}") for s in range(2)]
        job = self.start_steady_job(3, ",".join(d.address for d in daemons), SLUICE_JOB=7)
        job[2].send(signal.SIGKILL)
        for rank in job[:2]:
            self.refuses_late(rank, "worker lost about rank 2", "rank 2 is dead")
        for daemon in daemons:
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_aborted"), 1)

    def refuses_late(self, rank, *sayings):
        """It was under way before it failed."""
        self.ends_with(rank, 3, *sayings)


class Daemons(harness.SystemTest):
    def test_killed(self):
        daemon = self.start_daemon()
        other = self.start_daemon(name="a1")
        bystander = self.start_steady_job(2, other)
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7, SLUICE_AGGREGATOR_TIMEOUT_MS=1000)
        daemon.send(signal.SIGKILL)
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost: job 7: aggregator 0 at "
                           f"{daemon.address} is silent for 1 s")
        self.end_steady_job(bystander)
        self.ends_on_signal(other)

    def test_killed_and_started_again(self):
        """The workers' ports come back by themselves; their job's state is gone, which they say."""
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7, SLUICE_AGGREGATOR_TIMEOUT_MS=30_000)
        daemon.send(signal.SIGKILL)
        daemon.wait()
        second = self.start_daemon()
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost", "restarted while the job was under way")
        self.end_steady_job(self.start_steady_job(2, second, SLUICE_JOB=7))
        self.ends_on_signal(second)

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
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
        self.ends_on_signal(daemon)
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost", "the aggregator is shutting down")

    def test_told_to_end_twice(self):
        daemon = self.start_daemon("--drain-timeout-ms", LONG)
        job = self.start_steady_job(2, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
        daemon.send(signal.SIGTERM)
        daemon.wait_to_say("ending: waiting")
        self.ends_on_signal(daemon)
        for rank in job:
            self.ends_with(rank, 3, "aggregator lost", "the aggregator is shutting down")


class Strangers(harness.SystemTest):
    def test_garbage(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=7)
        sender = self.start("garbage", harness.program("garbage_sender"), self.directory(), 7, 20)
        self.all_end_well([sender])
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        for reason in ("too_short", "bad_magic", "bad_kind", "bad_length", "wrong_direction",
                       "unknown_job", "unknown_token", "wrong_incarnation"):
            self.assertGreater(self.counter(daemon, reason), 0, reason)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)


class Cluster(harness.SystemTest):
    def test_interrupted_in_the_middle_of_a_run(self):
        cluster = self.start("cluster", os.path.join(harness.ROOT, "scripts", "local-cluster"),
                             "--build", harness.build, "--workers", 2, "--", "steady_job",
                             self.place + "/never")
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
                continue  # gone, or another user's
        return found


if __name__ == "__main__":
    harness.main()
