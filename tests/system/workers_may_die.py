"""A worker dies or hangs: the other ranks of its job get an error at once that names it, and no
other job is affected. A rank that is only slow is not declared failed."""
import os
import signal
import time
import unittest

import harness

LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait


class WorkerTest(harness.SystemTest):
    def lost(self, rank, dead, how="is lost: its local port disconnected, last heard \\d+ ms ago"):
        """Checks that it was under way; returns when it failed, on the monotonic clock."""
        self.ends_with(rank, 3, f"worker lost about rank {dead}: job 7: rank {dead} {how}")
        return float(rank.wait_to_say(r"op \d+ failed at ([0-9.]+)").group(1))

    def kill(self, rank):
        """When it was."""
        moment = time.monotonic()
        rank.send(signal.SIGKILL)
        return moment


class Deaths(WorkerTest):
    def test_the_job_can_be_joined_again_at_once(self):
        """A port disconnects: nobody waits for a time-out. With equal and with different sizes."""
        daemon = self.start_daemon("--liveness-timeout-ms", LONG)
        other_job = self.start_steady_job(2, daemon)
        told = []
        for ranks, dead in ((3, 1), (3, 0), (2, 1), (4, 3)):
            job = self.start_steady_job(ranks, daemon, elements=100_000, in_flight=2, SLUICE_JOB=7,
                                        SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
            killed = self.kill(job.pop(dead))
            told += [self.lost(rank, dead) - killed for rank in job]
        print("told of the death after (ms): " + " ".join(f"{1000 * t:.0f}" for t in told))
        self.assertLess(max(told), harness.AT_ONCE)
        self.end_steady_job(self.start_steady_job(3, daemon, SLUICE_JOB=7))
        self.end_steady_job(other_job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 4)
        self.assertEqual(self.counter(daemon, "jobs_left"), 2)

    def test_fifty_in_one_daemons_life(self):
        """Ten at a time: two while their jobs form, which then fail to, and eight that run."""
        daemon = self.start_daemon("--vhost-max-ports", 30, "--max-jobs", 12)
        other_job = self.start_steady_job(2, daemon)
        for wave in range(5):
            jobs = [self.launch_steady_job(2, daemon, SLUICE_JOB=10 * wave + k,
                                           SLUICE_JOIN_TIMEOUT_MS=3000 if k < 2 else LONG)
                    for k in range(10)]
            for _, early in jobs[:2]:
                early.send(signal.SIGKILL)
            for _, late in jobs[2:]:
                late.wait_to_say("under way")
                late.send(signal.SIGKILL)
            for survivor, _ in jobs[:2]:
                self.ends_with(survivor, 3, "formation failed|worker lost")
            for survivor, _ in jobs[2:]:
                self.ends_with(survivor, 3, "worker lost about rank 1")
        self.end_steady_job(other_job)
        self.ends_on_signal(daemon)
        self.assertGreaterEqual(self.counter(daemon, "jobs_aborted"), 40)

    def test_two_aggregators_agree_on_the_loss(self):
        daemons = self.start_shards(2, "--liveness-timeout-ms", LONG)
        job = self.start_steady_job(3, daemons, SLUICE_JOB=7)
        job[2].send(signal.SIGKILL)
        for rank in job[:2]:
            self.lost(rank, 2)
        for daemon in daemons:
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_aborted"), 1)


class Silence(WorkerTest):
    def test_beyond_the_liveness_timeout(self):
        """The port stays, so the liveness time-out ends the job."""
        daemon = self.start_daemon("--liveness-timeout-ms", 1000)
        other_job = self.start_steady_job(2, daemon)
        job = self.start_steady_job(3, daemon, SLUICE_JOB=7)
        stopped = time.monotonic()
        job[1].send(signal.SIGSTOP)
        for rank in (job[0], job[2]):
            told = self.lost(rank, 1, "is declared failed: .* \\d{4,5} ms") - stopped
            self.assertLess(told, 1 + harness.AT_ONCE)
        job[1].send(signal.SIGCONT)
        # Each lane reports what it saw first: one may have seen that the others are gone.
        self.ends_with(job[1], 3, r"job 7: rank (1 is declared failed|[02] is lost: its local )")
        self.end_steady_job(other_job)
        self.ends_on_signal(daemon)

    def test_a_straggler_is_named_and_not_lost(self):
        daemon = self.start_daemon("--liveness-timeout-ms", LONG, "--straggler-warning-ms", 200)
        job = self.start_steady_job(3, daemon, SLUICE_JOB=7)
        job[1].send(signal.SIGSTOP)
        daemon.wait_to_say(r"job 7: op \d+ has waited \d{3,} ms for rank 1 \(heard \d+ ms ago\)")
        job[1].send(signal.SIGCONT)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)

    def test_pauses_and_loss_are_no_death(self):
        """A rank does not run for 1 s of every 2 s, at 1% loss, liveness 5 s, for 20 s."""
        daemon = self.start_daemon("--liveness-timeout-ms", 5000, "--faults", "loss=0.01")
        job = self.start_steady_job(3, daemon, SLUICE_JOB=7, SLUICE_FAULTS="loss=0.01,seed=2")
        for _ in range(10):
            job[1].send(signal.SIGSTOP)
            time.sleep(1)
            job[1].send(signal.SIGCONT)
            time.sleep(1)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OverTheNetwork(harness.NetworkTest, WorkerTest):
    def test_silence_is_the_only_sign(self):
        self.make_network(workers=3, aggregators=1)
        daemon = self.start_aggregator(0, "--liveness-timeout-ms", 1000)
        job = self.start_steady_job(3, daemon, SLUICE_JOB=7)
        killed = self.kill(job[1])
        for rank in (job[0], job[2]):
            told = self.lost(rank, 1, "is declared failed: .* \\d{4,5} ms") - killed
            self.assertLess(told, 1 + harness.AT_ONCE)
        self.end_steady_job(self.start_steady_job(2, daemon, SLUICE_JOB=7))
        self.ends_on_signal(daemon)


if __name__ == "__main__":
    harness.main()
