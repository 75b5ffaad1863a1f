"""Results go to many ranks by multicast, through a bridge with snooping and a querier: once to all
which receive the group, and by unicast to those that do not."""
import os
import re
import signal
import subprocess
import unittest

import harness
from harness import af_packet

GROUPS = "239.255.74.0/24"
JOB, GROUP = 7, "239.255.74.7"
RANKS = 4
SECRET = "known-to-the-ranks-and-their-daemon"


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class Multicast(harness.NetworkTest):
    def setUp(self):
        self.make_network(workers=RANKS, aggregators=1)
        af_packet.ip("link", "add", "name", "nowhere", "type", "ifb")  # it is down

    def serve(self, *flags, **settings):
        return self.start_aggregator(0, "--multicast-groups", GROUPS, "--stats-interval-s", 1,
                                     "--liveness-timeout-ms", 20_000, *flags, **settings)

    def sum_steadily(self, daemon, **settings):
        return self.start_steady_job(RANKS, daemon, elements=300_000, in_flight=3,
                                     SLUICE_JOB=JOB, SLUICE_AGGREGATOR_TIMEOUT_MS=20_000,
                                     **settings)

    @staticmethod
    def cut_off(rank):
        """The switch's port to that rank passes no multicast any more; everything else passes."""
        tc("qdisc", "add", "dev", f"w{rank}", "clsact")
        tc("filter", "add", "dev", f"w{rank}", "egress", "protocol", "ip", "u32",
           "match", "ip", "dst", GROUPS, "action", "mirred", "egress", "redirect", "dev", "nowhere")

    @staticmethod
    def let_receive(rank):
        tc("qdisc", "delete", "dev", f"w{rank}", "clsact")

    def of_group(self, daemon):
        """Packets to the group, ranks served by them, and all results delivered."""
        return [self.counter(daemon, name)
                for name in ("group_packets", "results_by_group", "results_sent")]

    def test_one_packet_is_for_all(self):
        daemon = self.serve()
        job = self.sum_steadily(daemon)
        daemon.wait_to_say("results_by_group")
        self.assertEqual(self.members(), {f"w{rank}" for rank in range(RANKS)})
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        packets, by_group, results = self.of_group(daemon)
        self.assertGreater(by_group, 0.9 * RANKS * packets)  # not all receive it from the beginning
        self.assertGreater(by_group, 0.9 * results)
        self.assertEqual(self.counter(daemon, "group_unreachable"), 0)

    def test_a_rank_that_is_cut_off_and_hears_again(self):
        daemon = self.serve()
        job = self.sum_steadily(daemon)
        daemon.wait_to_say("results_by_group")
        self.cut_off(2)
        daemon.wait_to_say(f"rank 2 does not receive group {GROUP}")
        self.let_receive(2)
        daemon.wait_to_say(f"rank 2 receives group {GROUP} again")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(len(re.findall("does not receive group", daemon.err)), 1)

    def test_a_rank_that_never_hears(self):
        self.cut_off(0)
        daemon = self.serve()
        job = self.sum_steadily(daemon)
        daemon.wait_to_say("rank 0 does not receive group")
        daemon.wait_to_say("results_by_group")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        packets, by_group, results = self.of_group(daemon)
        self.assertLessEqual(by_group, (RANKS - 1) * packets)
        self.assertGreater(by_group, 0.9 * (RANKS - 1) * packets)
        self.assertLess(self.counter(daemon, "results_repeated"), results / 20)

    def test_a_network_without_multicast(self):
        for rank in range(RANKS):
            self.cut_off(rank)
        daemon = self.serve()
        job = self.sum_steadily(daemon)
        for rank in range(RANKS):
            daemon.wait_to_say(f"rank {rank} does not receive group")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.of_group(daemon)[:2], [0, 0])

    def test_a_daemon_that_is_killed_and_comes_back(self):
        daemon = self.serve()
        job = self.sum_steadily(daemon)
        daemon.wait_to_say("results_by_group")
        daemon.kill()
        daemon = self.serve()
        daemon.wait_to_say("resumed with its progress")
        daemon.wait_to_say("results_by_group")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_encrypted_packets(self):
        daemon = self.serve("--encrypt-packets", SLUICE_AGGREGATOR_SECRET=SECRET)
        job = self.sum_steadily(daemon, SLUICE_SECRET=SECRET)
        daemon.wait_to_say("results_by_group")
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "not_authentic"), 0)

    def members(self):
        """The switch's ports to which it forwards the group."""
        shown = subprocess.run(["bridge", "mdb", "show"], check=True, capture_output=True,
                               text=True).stdout
        return set(re.findall(rf"port (\w+) grp {re.escape(GROUP)} ", shown))


def tc(*words):
    subprocess.run(["tc", *map(str, words)], check=True)


if __name__ == "__main__":
    harness.main()
