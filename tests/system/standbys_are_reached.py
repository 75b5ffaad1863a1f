"""Which of a shard's addresses a worker uses, and how it finds the next daemon after a death."""
import os
import signal
import time
import unittest

import harness


def takes_over(test, job, first, start_second):
    first.send(signal.SIGKILL)
    first.wait()
    second = start_second()
    second.wait_to_say("job .* resumed")
    test.end_steady_job(job)
    test.ends_on_signal(second)


class Standbys(harness.SystemTest):
    def test_a_standby_that_is_not_there_keeps_nobody_out(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, self.address("a0", "a1"))
        self.assertIn(f"vhost:{self.directory('a1')}: no aggregator is there yet", job[0].err)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "attached"), 2)

    def test_the_first_address_is_preferred(self):
        daemons = [self.start_daemon(name=name) for name in ("a0", "a1")]
        job = self.start_steady_job(2, self.address("a0", "a1"))
        self.end_steady_job(job)
        for daemon, jobs in zip(daemons, (1, 0)):
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_formed"), jobs)

    def test_a_standby_serves_where_the_first_never_was(self):
        daemon = self.start_daemon(name="a1")
        self.end_steady_job(self.start_steady_job(2, self.address("a0", "a1")))
        self.ends_on_signal(daemon)

    def test_nobody_anywhere(self):
        rank = self.start_joiner(0, 1, self.address("a0", "a1"))
        self.refuses(rank, 3, "unavailable: .*/a0' is missing.*; .*/a1' is missing")

    def test_nobody_within_the_time_given(self):
        os.mkdir(self.directory("a0"))
        begin = time.monotonic()
        rank = self.start_joiner(0, 1, self.address("a0"), SLUICE_CONNECT_TIMEOUT_MS=300)
        self.refuses(rank, 3, "unavailable: .*no aggregator serves this directory")
        self.assertLess(time.monotonic() - begin, harness.AT_ONCE)

    def test_a_daemon_at_the_same_address_takes_over(self):
        first = self.start_daemon()
        job = self.start_steady_job(3, first)
        takes_over(self, job, first, self.start_daemon)

    def test_a_standby_takes_over_from_one_that_is_told_to_end(self):
        first, second = [self.start_daemon(name=name) for name in ("a0", "a1")]
        job = self.start_steady_job(3, self.address("a0", "a1"))
        self.ends_on_signal(first)
        self.assertEqual(self.counter(first, "jobs_sent_away"), 1)
        second.wait_to_say("job .* resumed")
        self.end_steady_job(job)
        self.ends_on_signal(second)

    def test_a_standby_that_is_there_already_takes_over(self):
        first, second = [self.start_daemon(name=name) for name in ("a0", "a1")]
        job = self.start_steady_job(3, self.address("a0", "a1"))
        takes_over(self, job, first, lambda: second)

    def test_a_standby_that_comes_after_the_death_takes_over(self):
        first = self.start_daemon()
        job = self.start_steady_job(3, self.address("a0", "a1"))
        takes_over(self, job, first, lambda: self.start_daemon(name="a1"))


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OverTheNetwork(harness.NetworkTest):
    def setUp(self):
        self.make_network(workers=2, aggregators=2)

    def test_a_standby_takes_over(self):
        first, second = [self.start_aggregator(host) for host in range(2)]
        job = self.start_steady_job(2, f"{first.address}|{second.address}")
        takes_over(self, job, first, lambda: second)

    def test_another_machine_takes_over_the_address(self):
        first = self.start_aggregator(0)
        job = self.start_steady_job(2, first)
        takes_over(self, job, first, lambda: self.start_aggregator(1, address=0))


if __name__ == "__main__":
    harness.main()
