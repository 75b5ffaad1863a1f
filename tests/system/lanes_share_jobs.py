"""Aggregators of several lanes: each serves its streams of every job, over local and network
ports."""
import os
import unittest

import harness
from harness import af_packet

LANES = range(2)


class Lanes(harness.SystemTest):
    def test_each_serves_its_streams(self):
        daemon = self.start_daemon("--lanes", 2)
        for settings in ({}, {"SLUICE_SHARED_MEMORY": 0}):
            self.end_steady_job(self.start_steady_job(2, daemon, **settings))
        self.ends_on_signal(daemon)
        self.assertEqual(daemon.err.count(harness.BY_REFERENCE), 1)
        for lane in LANES:
            self.assertEqual(self.counter(daemon, "jobs_formed", lane), 2)
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)
            self.assertEqual(self.counter(daemon, "rx_handed_over", lane), 0)

    def test_two_aggregators_of_two(self):
        daemons = self.start_shards(2, "--lanes", 2)
        self.end_steady_job(self.start_steady_job(3, daemons))
        for daemon in daemons:
            self.ends_on_signal(daemon)
            for lane in LANES:
                self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)

    def test_a_worker_may_come_first(self):
        os.mkdir(self.directory("a0"), 0o700)
        job = self.launch_steady_job(2, self.address("a0"))
        for rank in job:
            harness.wait_until(lambda rank=rank: harness.has_thread(rank, "eal-intr-thread"),
                               "it has DPDK, and looks for a daemon")
        daemon = self.start_daemon("--lanes", 2)
        for rank in job:
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_aggregators_that_have_not_as_many(self):
        daemons = [self.start_daemon("--shard", s, "--shards", 2, "--lanes", lanes, name=f"a{s}")
                   for s, lanes in enumerate((2, 1))]
        rank = self.start_joiner(0, 1, daemons)
        self.refuses(rank, 3, "this rank names aggregators that have 4 lanes in all, and this one "
                              "counts 2: its settings `shards` or `lanes` are not those of the "
                              "others")

    def test_one_that_comes_back_with_others(self):
        for before, then in ((2, 1), (1, 2), (2, 4)):
            with self.subTest(before=before, then=then):
                name = f"a{before}{then}"
                first = self.start_daemon("--lanes", before, name=name)
                job = self.start_steady_job(2, first)
                second = self.restart(first, "--lanes", then, name=name)
                for rank in job:
                    self.ends_with(rank, 3, f"have {before} lanes in all, and this one counts "
                                            f"{then}:")
                self.end_steady_job(self.start_steady_job(2, second))
                self.ends_on_signal(second)

    def test_many_jobs_over_four(self):
        daemon = self.start_daemon("--lanes", 4)
        jobs = [self.start_steady_job(2, daemon) for _ in range(4)]
        for job in jobs:
            self.end_steady_job(job)
        daemon.wait_to_say("warning .*: 4 lanes share ")
        self.ends_on_signal(daemon)


@unittest.skipIf(os.getuid() != 0, harness.NEEDS_ROOT)
class OverNetworks(harness.NetworkTest):
    def test_what_comes_to_another_lane_is_handed_over(self):
        self.make_network(workers=3, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2)
        self.end_steady_job(self.start_steady_job(3, daemon))
        self.ends_on_signal(daemon)
        for lane in LANES:
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)
            self.assertEqual(self.counter(daemon, "rx_hand_over_full", lane), 0)
        self.assertGreater(sum(self.counter(daemon, "rx_handed_over", lane) for lane in LANES), 0)

    def test_a_device_with_too_few_queues(self):
        self.make_network(workers=1, aggregators=1)
        device = f"{af_packet.DEVICE},qpairs=1"
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--port", device,
                            "--address", "10.77.0.1/16", "--lanes", 2,
                            before_exec=self._on(self.network.aggregator_namespace(0)))
        self.ends_with(daemon, 2, "qpairs=1.*: 2 queues, the device has 1")


if __name__ == "__main__":
    harness.main()
