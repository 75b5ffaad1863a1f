"""An aggregator dies and comes back, or a standby takes over: the calls that were under way return
the right sums, to the last bit, and the callers do nothing for it. If nothing comes back, every
rank gets an error in time."""
import os
import re
import signal
import time
import unittest

import harness


class Restarts(harness.SystemTest):
    def check_resumed(self, daemon, jobs=1):
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_resumed"), jobs)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), jobs)

    def test_again_and_again_with_several_ops_in_flight(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(3, daemon, elements=300_000, in_flight=3)
        for _ in range(4):
            daemon = self.restart(daemon)
            daemon.wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        self.check_resumed(daemon)
        self.assertGreater(self.counter(daemon, "streams_resynchronised"), 0)

    def test_and_the_ranks_say_when_their_links_are_down_and_up(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon)
        daemon.kill()
        for rank in job:
            rank.wait_to_say("a0: the link is down")
        daemon = self.start_daemon()
        for rank in job:
            rank.wait_to_say("a0: the link is up again")
        self.end_steady_job(job)

    def test_told_to_end_and_started_again(self):
        """No op is lost, and no rank gets an error."""
        daemon = self.start_daemon()
        job = self.start_steady_job(3, daemon, elements=300_000, in_flight=3)
        for _ in range(3):
            daemon.send(signal.SIGTERM)
            self.assertEqual(daemon.wait(), 0)
            self.assertIn("all 3 ranks were told", daemon.err)
            self.assertEqual(self.counter(daemon, "jobs_sent_away"), 1)
            self.assertNotIn("jobs_aborted", daemon.err)
            daemon = self.start_daemon()
            daemon.wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        self.check_resumed(daemon)

    def test_during_the_recovery_from_another_death(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(3, daemon, in_flight=2)
        for moment in ("ready", "ready", "resumed", "ready", "resumed", "resumed"):
            daemon = self.restart(daemon)
            daemon.wait_to_say(moment)
        daemon = self.restart(daemon)
        self.end_steady_job(job)
        self.check_resumed(daemon)

    def test_with_ranks_that_have_finished_what_others_have_not(self):
        """Results are lost on the way to some ranks: after the death their rounds are replayed."""
        flags = ["--faults", "loss=0.1,direction=tx", "--stats-interval-s", 1]
        daemon = self.start_daemon(*flags)
        job = self.start_steady_job(3, daemon, in_flight=2)
        repeated, deadline = 0, harness.Deadline()
        while repeated == 0:
            self.assertFalse(deadline.is_over(), "no rank was ever behind the others")
            daemon = self.restart(daemon, *flags)
            daemon.wait_to_say("counters so far: .*jobs_resumed")
            repeated = daemon.err.count("rounds_replayed")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)

    def test_one_of_two(self):
        daemons = self.start_shards(2)
        job = self.start_steady_job(3, daemons, elements=300_000, in_flight=2)
        for shard in (0, 1, 0):
            daemons[shard] = self.restart(daemons[shard], "--shard", shard, "--shards", 2,
                                          name=f"a{shard}")
            daemons[shard].wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        for daemon in daemons:
            self.check_resumed(daemon)

    def test_both_of_two(self):
        daemons = self.start_shards(2)
        job = self.start_steady_job(2, daemons)
        for daemon in daemons:
            daemon.send(signal.SIGKILL)
        for daemon in daemons:
            daemon.wait()
        daemons = self.start_shards(2)
        self.end_steady_job(job)
        for daemon in daemons:
            self.check_resumed(daemon)

    def test_with_several_jobs(self):
        daemon = self.start_daemon()
        jobs = [self.start_steady_job(2, daemon) for _ in range(2)]
        daemon = self.restart(daemon)
        for job in jobs:
            self.end_steady_job(job)
        self.check_resumed(daemon, jobs=2)

    def test_a_standby_takes_over(self):
        first, second = [self.start_daemon(name=name) for name in ("a0", "a1")]
        job = self.start_steady_job(3, self.address("a0", "a1"), in_flight=2)
        first.send(signal.SIGKILL)
        second.wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        self.check_resumed(second)


class NoReturn(harness.SystemTest):
    TIMEOUT_S = 1.5

    def dies_for_good(self, daemon, job, name):
        """Every rank gets an error that names it, and not before the time-out. Where another
        daemon gets no core in time, it misses the reason of the first rank that ends; the others
        may then be told that this rank is lost."""
        killed = time.monotonic()
        daemon.send(signal.SIGKILL)
        lost = "aggregator lost: job 7: .*" + name
        for rank in job:
            self.ends_with(rank, 3, rf"{lost}|worker lost about rank \d: job 7: .* disconnected")
        self.assertTrue(any(re.search(lost, rank.err) for rank in job))
        for rank in job:
            told = float(rank.wait_to_say("op \\d+ failed at ([0-9.]+)").group(1)) - killed
            self.assertGreater(told, self.TIMEOUT_S / 2)
            self.assertLess(told, self.TIMEOUT_S + harness.AT_ONCE)

    def start_job_7(self, ranks, daemon):
        return self.start_steady_job(ranks, daemon, in_flight=2, SLUICE_JOB=7,
                                     SLUICE_AGGREGATOR_TIMEOUT_MS=int(1000 * self.TIMEOUT_S))

    def test_of_the_only_one(self):
        daemon, other = self.start_daemon(), self.start_daemon(name="a1")
        other_job = self.start_steady_job(2, other)
        self.dies_for_good(daemon, self.start_job_7(3, daemon),
                           "aggregator 0 at " + daemon.address)
        self.end_steady_job(other_job)
        self.ends_on_signal(other)
        self.end_steady_job(self.start_steady_job(3, self.start_daemon(), SLUICE_JOB=7))

    def test_of_one_of_two(self):
        daemons = self.start_shards(2)
        self.dies_for_good(daemons[1], self.start_job_7(2, daemons), "aggregator 1")
        self.ends_on_signal(daemons[0])
        self.assertEqual(self.counter(daemons[0], "jobs_aborted"), 1)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OverABadNetwork(harness.NetworkTest):
    FAULTS = "loss=0.01,duplicate=0.01,reorder=0.02,flip=0.005"

    def test_again_and_again(self):
        self.make_network(workers=2, aggregators=1)
        flags = ["--faults", "seed=1," + self.FAULTS]
        daemon = self.start_aggregator(0, *flags)
        job = self.start_steady_job(2, daemon, elements=100_000, in_flight=2,
                                    SLUICE_FAULTS="seed=2," + self.FAULTS)
        for _ in range(3):
            daemon.send(signal.SIGKILL)
            daemon.wait()
            daemon = self.start_aggregator(0, *flags)
            daemon.wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)
        self.assertGreater(self.counter(daemon, "bad_integrity"), 0)


if __name__ == "__main__":
    harness.main()
