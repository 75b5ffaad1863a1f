"""Aggregators of several lanes: each serves its streams of every job, over local and network
ports. Also their default number."""
import os
import unittest

import harness
from harness import af_packet

LANES = range(2)
HELLOS = 10  # the most that a rank sends before it gets an answer


class Lanes(harness.SystemTest):
    def test_each_serves_its_streams(self):
        daemon = self.start_daemon("--lanes", 2)
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.ends_on_signal(daemon)
        for lane in LANES:
            self.assertEqual(self.counter(daemon, "jobs_formed", lane), 1)
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
            harness.wait_until(lambda rank=rank: harness.has_dpdk(rank), "it looks for a daemon")
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


class Default(harness.SystemTest):
    """How many lanes a daemon without `lanes` starts, by the cores that it may use."""

    def start_by_default(self, *flags, before_exec=None):
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), *flags, before_exec=before_exec)
        daemon.address = self.address("a0")
        daemon.wait_to_say(harness.READY)
        return daemon

    def test_one_core(self):
        core = max(os.sched_getaffinity(0))
        daemon = self.start_by_default(before_exec=lambda: os.sched_setaffinity(0, {core}))
        self.assertIn("lanes: 1, a quarter of 1 core, at least 1\n", daemon.err)

    @unittest.skipIf(os.getuid() != 0, harness.NEEDS_ROOT)
    def test_a_quota(self):
        cores = len(os.sched_getaffinity(0))
        if cores == 1:
            self.skipTest("needs two cores")
        group = self.group_of_one_core()

        def enter():
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write("0")

        daemon = self.start_by_default(before_exec=enter)
        self.assertIn(f"lanes: 1, a quarter of 1 core (of {cores}, by a CPU quota), at least 1\n",
                      daemon.err)
        self.ends_on_signal(daemon)

    def group_of_one_core(self):
        """A control group's directory, in the hierarchy that has quotas."""
        for place, name, quota in (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"),
                                   ("/sys/fs/cgroup", "cpu.max", "100000 100000")):
            group = os.path.join(place, f"sluice-test-{os.getpid()}")
            try:
                os.mkdir(group)
            except OSError:
                continue
            self.addCleanup(os.rmdir, group)
            if os.path.exists(os.path.join(group, name)):
                with open(os.path.join(group, name), "w", encoding="ascii") as file:
                    file.write(quota)
                return group
        return self.skipTest("needs a control group with a CPU quota")

    def test_a_lane_for_each_core_of_cpu(self):
        core = max(os.sched_getaffinity(0))
        daemon = self.start_by_default("--cpu", core, "--cpu", core)
        self.assertIn("lanes: 2, one for each core of cpu\n", daemon.err)
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.ends_on_signal(daemon)
        for lane in LANES:
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)


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

    def steer(self, *flags, vlan=0, **settings):
        """A daemon of two lanes whose device has rules, after a job of three ranks."""
        self.make_network(workers=3, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2, "--port-vlan", vlan, *flags, **settings,
                                       LD_PRELOAD=harness.program("libsteering_device.so"))
        self.serve_a_job(daemon, 3, SLUICE_VLAN=vlan)
        return daemon

    def serve_a_job(self, daemon, ranks, **settings):
        """Checks its counters: both lanes have taken part."""
        self.end_steady_job(self.start_steady_job(ranks, daemon, **settings))
        self.ends_on_signal(daemon)
        for lane in LANES:
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)

    def handed_over(self, daemon):
        return [self.counter(daemon, "rx_handed_over", lane) for lane in LANES]

    def test_a_device_steers(self):
        for vlan, told in ((0, -1), (7, 7)):
            with self.subTest(vlan=vlan):
                daemon = self.steer(vlan=vlan)
                self.assertIn("steering: rte_flow\n", daemon.err)
                for lane in LANES:
                    port = 4747 + lane
                    self.assertIn(f"rule: VLAN {told}, UDP port {port} to queue {lane}", daemon.err)
                    self.assertIn(f"rule of UDP port {port} is gone", daemon.err)
                self.assertEqual(self.handed_over(daemon), [0, 0])

    def test_a_device_refuses_to_steer(self):
        """Then all frames come to queue 0 here."""
        for call, why, created in (("validate", "not this pattern", 0),
                                   ("create", "no room for more rules", 1)):
            with self.subTest(call=call):
                daemon = self.steer(STEERING_REFUSES=call)
                self.assertIn(f"steering: software hand-over ({why}; no RSS by UDP ports)",
                              daemon.err)
                self.assertEqual(daemon.err.count("to queue"), created)
                self.assertEqual(daemon.err.count("is gone"), created)
                self.assertGreater(self.handed_over(daemon)[0], 0)

    def test_a_device_that_spreads_by_ports(self):
        """It accepts no rules: ranks send from ports that bring their packets to the right lane.
        From its own port each rank sends only to the first lane, and only until it gets an
        answer."""
        daemon = self.steer(STEERING_RSS="on")
        self.assertIn("steering: source ports, by RSS (no rules at all)\n", daemon.err)
        handed_over = self.handed_over(daemon)
        self.assertLessEqual(handed_over[1], 3 * HELLOS)
        self.assertEqual(handed_over[0], 0)

    def test_a_device_that_spreads_by_ports_over_many_lanes(self):
        self.make_network(workers=2, aggregators=1)
        lanes = 5
        daemon = self.start_aggregator(0, "--lanes", lanes, STEERING_RSS="on",
                                       LD_PRELOAD=harness.program("libsteering_device.so"))
        self.end_steady_job(self.start_steady_job(2, daemon))
        self.ends_on_signal(daemon)
        self.assertLessEqual(
            sum(self.counter(daemon, "rx_handed_over", lane) for lane in range(lanes)),
            2 * HELLOS)
        for lane in range(lanes):
            self.assertGreater(self.counter(daemon, "rounds_finished", lane), 0)

    def test_ranks_come_back_to_a_device_that_spreads_by_ports(self):
        self.make_network(workers=2, aggregators=1)
        settings = {"LD_PRELOAD": harness.program("libsteering_device.so")}
        first = self.start_aggregator(0, "--lanes", 2, **settings, STEERING_RSS="on")
        job = self.start_steady_job(2, first)
        first.kill()
        second = self.start_aggregator(0, "--lanes", 2, **settings, STEERING_RSS="on")
        self.end_steady_job(job)
        self.ends_on_signal(second)
        self.assertLessEqual(sum(self.handed_over(second)), 2 * HELLOS)

    def test_a_device_that_does_not_tell_how_it_spreads(self):
        for untold in ("key", "table"):
            with self.subTest(untold=untold):
                daemon = self.steer(STEERING_RSS=untold)
                self.assertIn("steering: software hand-over (no rules at all; the RSS "
                              f"{untold} cannot be read: Operation not supported)", daemon.err)
                self.assertGreater(sum(self.handed_over(daemon)), 0)

    def test_a_device_whose_table_changes(self):
        """Ranks that join afterwards get no source ports, and send from their own."""
        self.make_network(workers=3, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2, STEERING_RSS="changes",
                                       LD_PRELOAD=harness.program("libsteering_device.so"))
        daemon.wait_to_say(r"warning .*steering: software hand-over from now on \(the RSS key or "
                           r"table has changed\)")
        self.serve_a_job(daemon, 3)
        self.assertIn("steering: source ports, by RSS", daemon.err)
        self.assertGreater(sum(self.handed_over(daemon)), 0)

    def test_a_device_that_spreads_otherwise_than_it_tells(self):
        daemon = self.steer(STEERING_RSS="other")
        self.assertIn("steering: source ports, by RSS", daemon.err)
        self.assertGreater(min(self.handed_over(daemon)), 100)

    def test_a_device_without_rules(self):
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2)
        self.assertRegex(daemon.err, r"steering: software hand-over \(.+\)")
        self.ends_on_signal(daemon)

    def test_a_tap_device(self):
        """Its driver makes rules of the kernel's traffic control, if that has all that is needed.
        Otherwise the kernel sends to the queue from which answers came. The bridge keeps frames for
        its port's own address, so the port gets another address than Sluice's."""
        self.make_network(workers=2, aggregators=0)
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--port",
                            "net_tap0,iface=tap0", "--address", "10.77.0.1/16", "--lanes", 2)
        daemon.address = "10.77.0.1"
        daemon.wait_to_say(harness.READY)
        af_packet.ip("link", "set", "tap0", "address", "02:00:00:00:00:99")
        af_packet.ip("link", "set", "tap0", "master", "switch0", "up")
        self.serve_a_job(daemon, 2)
        if "steering: rte_flow\n" in daemon.err:
            self.assertEqual(self.handed_over(daemon), [0, 0])
        else:
            self.assertIn("steering: software hand-over (", daemon.err)

    def test_a_device_with_too_few_queues(self):
        self.make_network(workers=1, aggregators=1)
        device = f"{af_packet.DEVICE},qpairs=1"
        daemon = self.start("a0", harness.program("sluice-aggregator"), "--port", device,
                            "--address", "10.77.0.1/16", "--lanes", 2,
                            before_exec=self._on(self.network.aggregator_namespace(0)))
        self.ends_with(daemon, 2, "qpairs=1.*: 2 queues, the device has 1")


if __name__ == "__main__":
    harness.main()
