"""sluice-pktgen against real aggregators and against a lane in memory: what it reports agrees with
what the other end counts, injected loss is seen, and wrong options are refused clearly."""
import json
import os
import signal
import unittest

import harness
from harness import af_packet, af_xdp

SECONDS = 0.6  # long enough for a daemon on a busy machine to run
HELLOS = 10  # the most that a rank sends before it gets an answer
STAGES = ("receive", "validate", "sum", "build", "transmit", "other")


class Reports:
    """For a SystemTest: reads the report of a short run, and checks what every report must have."""

    def short_run(self, seconds=SECONDS):
        """Flags of a run that checks every result. Other work may keep an aggregator silent."""
        self.path = os.path.join(self.place, "report.json")
        return ("--duration", seconds, "--warmup", "0.1", "--check", "all", "--json", self.path,
                "--aggregator-timeout", harness.TIME_LIMIT)

    def report_of(self, pktgen, seconds=SECONDS):
        """The report of a successful run."""
        self.assertEqual(pktgen.wait(), 0, pktgen.err + pktgen.out)
        self.assertRegex(pktgen.out, r"wrong 0\n")
        with open(self.path, encoding="utf-8") as file:
            report = json.load(file)
        self.check_consistency(report, seconds)
        return report

    def check_consistency(self, report, seconds):
        self.assertTrue(report["right"])
        total = report["total"]["generator"]
        self.assertEqual(total["results_wrong"], 0)
        self.assertEqual(total["results_missed"], 0)
        self.assertEqual(total["results_checked"], total["results"] - total["results_early"])
        measured = report["measured"]
        self.assertGreaterEqual(measured["seconds"], seconds)
        for way in ("to_aggregator", "from_aggregator"):
            traffic = measured[way]
            self.assertGreater(traffic["packets"], 0)
            self.assertGreater(traffic["frame_bytes"], traffic["block_bytes"])
            self.assertAlmostEqual(traffic["packets_per_s"] * measured["seconds"],
                                   traffic["packets"], delta=1)
            self.assertAlmostEqual(traffic["bits_per_s"] * measured["seconds"],
                                   8 * traffic["frame_bytes"], delta=8)
        latency = measured["latency_us"]
        figures = [latency[key] for key in ("min", "p50", "p90", "p99", "p99_9", "max")]
        self.assertEqual(figures, sorted(figures))
        self.assertGreater(latency["count"], 0)
        self.assertGreater(measured["generator"]["cycles_per_packet"], 0)
        self.assertGreater(measured["generator"]["cpu_share"], 0)
        self.assertLessEqual(measured["generator"]["busy_share"], 1)
        self.check_sums(report)

    def check_sums(self, report):
        """The lanes' figures, each of which is a part of the sums."""
        lanes = report["of_lanes"]
        self.assertEqual(len(lanes), report["lanes"])
        for key, total in report["total"]["generator"].items():
            self.assertEqual(total, sum(lane["total"]["generator"][key] for lane in lanes), key)
        measured = [lane["measured"] for lane in lanes]
        for way in ("to_aggregator", "from_aggregator"):
            for key in ("packets", "frame_bytes", "block_bytes"):
                parts = [window[way][key] for window in measured]
                self.assertEqual(report["measured"][way][key], sum(parts), (way, key))
        latency = report["measured"]["latency_us"]
        latencies = [window["latency_us"] for window in measured if window["latency_us"]["count"]]
        self.assertEqual(latency["count"], sum(part["count"] for part in latencies))
        self.assertEqual(latency["min"], min(part["min"] for part in latencies))
        self.assertEqual(latency["max"], max(part["max"] for part in latencies))
        medians = [part["p50"] for part in latencies]
        self.assertLessEqual(min(medians), latency["p50"])
        self.assertLessEqual(latency["p50"], max(medians) * 65 / 64)  # a histogram's resolution

    def check_against_lanes(self, report, daemon):
        """A daemon with as many lanes: each lane counts what the generator of its share counts."""
        self.ends_on_signal(daemon)
        for number, lane in enumerate(report["of_lanes"]):
            total = lane["total"]["generator"]
            self.assertGreater(total["data_sent"], 0)
            self.assertEqual(self.counter(daemon, "contributions", number), total["data_sent"])
            self.assertEqual(self.counter(daemon, "results_sent", number), total["results"])
            self.assertEqual(self.counter(daemon, "jobs_left", number), 1)
            self.assertEqual(self.counter(daemon, "jobs_aborted", number), 0)

    def check_against_daemon(self, report, daemon):
        self.ends_on_signal(daemon)
        total = report["total"]["generator"]
        self.assertEqual(self.counter(daemon, "contributions"), total["data_sent"])
        self.assertEqual(self.counter(daemon, "results_sent"), total["results"])
        self.assertEqual(self.counter(daemon, "jobs_left"), 1)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)


class Pktgen(Reports, harness.SystemTest):
    def start_pktgen(self, *flags):
        return self.start("pktgen", harness.program("sluice-pktgen"), *flags)

    def report(self, *flags, seconds=SECONDS):
        return self.report_of(self.start_pktgen(*self.short_run(seconds), *flags), seconds)

    def test_dense_over_vhost(self):
        daemon = self.start_daemon()
        report = self.report("--aggregator", daemon.address, "--frame", "9000")
        total = report["total"]["generator"]
        self.assertEqual(report["columns"], 8)
        self.assertEqual(total["data_sent"], total["results"])
        self.assertEqual(total["block_bytes_sent"], total["block_bytes_received"])
        self.check_against_daemon(report, daemon)

    def test_sparse_halves_of_many_workers_over_vhost(self):
        daemon = self.start_daemon()
        report = self.report("--aggregator", daemon.address, "--workers", "32", "--streams", "16",
                             "--type", "half", "--density", "0.05")
        total = report["total"]["generator"]
        self.assertEqual(report["type"], "half")
        self.assertGreater(total["results"], total["data_sent"])
        self.assertGreater(total["acks_sent"], 0)
        self.check_against_daemon(report, daemon)

    def test_loss_is_seen_and_made_good(self):
        daemon = self.start_daemon()
        report = self.report("--aggregator", daemon.address, "--loss", "0.02", "--rto-min", "1",
                             "--rounds", "20")
        loss = report["measured"]["loss"]
        self.assertGreater(loss["resent"], 0)
        self.assertGreater(loss["dropped"], 0)
        drops = report["measured"]["generator"]["drops"]
        self.assertGreater(drops["rx_fault_lost"], 0)
        self.assertGreater(drops["tx_fault_lost"], 0)
        self.check_against_daemon(report, daemon)

    def test_a_lane_in_memory(self):
        report = self.report("--in-memory")
        self.check_lane(report)

    def test_a_lane_in_memory_with_a_core_of_its_own(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("needs two cores")
        report = self.report("--in-memory", "--cpu", f"{cores[0]},{cores[1]}")
        self.check_lane(report)

    def test_lanes_in_memory(self):
        report = self.report("--in-memory", "--lanes", 3)
        self.check_lane(report, lanes=3)

    def test_lane_0_of_an_aggregator_of_two(self):
        daemon = self.start_daemon("--lanes", 2)
        report = self.report("--aggregator", daemon.address)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "contributions", lane=0),
                         report["total"]["generator"]["data_sent"])
        self.assertEqual(self.counter(daemon, "packets_received", lane=1), 0)

    def test_lanes_over_vhost(self):
        for lanes in (2, 3):
            with self.subTest(lanes=lanes):
                daemon = self.start_daemon("--lanes", lanes, name=f"a{lanes}")
                report = self.report("--aggregator", daemon.address, "--lanes", lanes)
                self.assertEqual(report["lanes"], lanes)
                self.check_against_lanes(report, daemon)

    def test_loss_at_lanes(self):
        daemon = self.start_daemon("--lanes", 2)
        report = self.report("--aggregator", daemon.address, "--lanes", 2, "--loss", "0.02",
                             "--rto-min", "1", "--rounds", "20")
        for lane in report["of_lanes"]:
            self.assertGreater(lane["total"]["generator"]["data_resent"], 0)
            self.assertGreater(lane["measured"]["generator"]["drops"]["rx_fault_lost"], 0)
        self.check_against_lanes(report, daemon)

    def test_lanes_are_told_apart_in_the_report(self):
        daemon = self.start_daemon("--lanes", 2)
        pktgen = self.start_pktgen(*self.short_run(), "--aggregator", daemon.address,
                                   "--lanes", 2, "--rate", 2000)
        report = self.report_of(pktgen)
        self.assertIn(f", 2 lanes of {daemon.address}\n", pktgen.out)
        for lane in range(2):
            self.assertRegex(pktgen.out, rf"\n +of lane {lane} +to [\d.]+ Mpps .* busy \d+%")
            self.assertEqual(report["of_lanes"][lane]["measured"]["offered_data_per_s"], 1000)
        self.assertEqual(report["measured"]["offered_data_per_s"], 2000)

    def test_an_aggregator_with_other_lanes(self):
        for has in (1, 3):
            daemon = self.start_daemon("--lanes", has, name=f"a{has}")
            pktgen = self.start_pktgen("--aggregator", daemon.address, "--lanes", 2)
            self.refuses(pktgen, 1, f"^sluice-pktgen: --lanes is 2, but the aggregator has {has}$")

    def check_lane(self, report, lanes=1):
        lane = report["measured"]["lane"]
        self.assertAlmostEqual(sum(lane["stages"][stage] for stage in STAGES),
                               lane["cycles_per_packet"], places=3)
        for stage in ("receive", "validate", "sum", "build", "transmit"):
            self.assertGreater(lane["stages"][stage], 0, stage)
        total = report["total"]
        self.assertEqual(total["lane"]["contributions"], total["generator"]["data_sent"])
        self.assertEqual(total["lane"]["results_sent"], total["generator"]["results"])
        self.assertEqual(total["lane"]["jobs_left"], lanes)

    def test_loss_in_memory(self):
        report = self.report("--in-memory", "--loss", "0.02", "--rto-min", "1", "--rounds", "20")
        self.assertGreater(report["measured"]["loss"]["resent"], 0)
        self.assertGreater(report["measured"]["lane"]["drops"]["rx_fault_lost"], 0)

    def test_no_more_is_offered_than_asked(self):
        report = self.report("--in-memory", "--rate", "5000", "--rounds", "4")
        measured = report["measured"]
        self.assertEqual(measured["offered_data_per_s"], 5000)
        self.assertLess(measured["data_per_s"], 5000 * 1.01 + 50 / measured["seconds"])

    def test_the_search_reports_its_trials(self):
        self.check_search(self.report("--in-memory", "--find-rate", seconds=0.05))

    def test_a_search_at_lanes_in_memory(self):
        report = self.report("--in-memory", "--lanes", 2, "--find-rate", seconds=0.05)
        self.check_search(report)
        self.check_lane(report, lanes=2)

    def test_a_search_at_lanes(self):
        daemon = self.start_daemon("--lanes", 2)
        report = self.report("--aggregator", daemon.address, "--lanes", 2, "--find-rate",
                             seconds=0.05)
        self.check_search(report)
        self.check_against_lanes(report, daemon)

    def check_search(self, report):
        trials = report["trials"]
        self.assertIsNone(trials[0]["offered_data_per_s"])
        self.assertGreaterEqual(len(trials), 2)
        rates = [trial["offered_data_per_s"] for trial in trials[1:]]
        self.assertAlmostEqual(rates[0], trials[0]["data_per_s"])
        passed = [trial["offered_data_per_s"] for trial in trials if trial["sustained"]]
        best = report["measured"]["offered_data_per_s"]
        self.assertEqual(best, max(passed) if passed else None)
        for trial in trials:
            if trial["sustained"]:
                self.assertEqual(sum(trial["loss"].values()), 0)

    def test_frames_beyond_the_aggregators_are_cut_to_its_own(self):
        daemon = self.start_daemon("--mtu", "1500")
        report = self.report("--aggregator", daemon.address, "--frame", "9000")
        self.assertEqual(report["payload_bytes"], 1472)
        self.check_against_daemon(report, daemon)

    def test_what_the_aggregators_frames_cut_is_said(self):
        daemon = self.start_daemon("--mtu", "1500")
        pktgen = self.start_pktgen(*self.short_run(), "--aggregator", daemon.address,
                                   "--frame", "9000", "--block-elements", "2000")
        self.assertEqual(self.report_of(pktgen)["block_elements"], 250)
        self.assertRegex(pktgen.out, r"blocks of 250 float, frames of 1500 B\n")
        self.assertIn("\n# the aggregator's frames have 1500 B, not 9000 as asked: "
                      "blocks of 250 elements, not 2000\n", pktgen.out)

    def test_damaged_sums_are_noticed(self):
        daemon = self.start_daemon("--faults", "flip=0.001,direction=tx")
        pktgen = self.start_pktgen(*self.short_run(), "--aggregator", daemon.address)
        self.assertEqual(pktgen.wait(), 1)
        if pktgen.out:  # otherwise a packet of the control plane was damaged, too
            self.assertRegex(pktgen.out, r"wrong [1-9]\d*\n")

    def test_live_lines_and_an_early_end(self):
        daemon = self.start_daemon()
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--duration", "600", "--live")
        pktgen.wait_to_say(r"to \d+\.\d+ Mpps .* from \d+\.\d+ Mpps .* resent \d+  dropped \d+")
        pktgen.send(signal.SIGINT)
        self.assertEqual(pktgen.wait(), 0, pktgen.err + pktgen.out)
        self.assertRegex(pktgen.out, r"latency \(us\) +min [\d.]+")

    def test_an_early_end_of_lanes(self):
        daemon = self.start_daemon("--lanes", 2)
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--lanes", 2, "--find-rate",
                                   "--duration", "600", "--live")
        for lane in range(2):
            pktgen.wait_to_say(rf"lane {lane}: to \d+\.\d+ Mpps")
        pktgen.send(signal.SIGINT)
        self.assertEqual(pktgen.wait(), 0, pktgen.err + pktgen.out)
        self.assertIn("of lane 1", pktgen.out)

    def test_the_aggregator_dies(self):
        self.check_death(1)

    def test_the_aggregator_of_several_lanes_dies(self):
        self.check_death(2)

    def check_death(self, lanes):
        daemon = self.start_daemon("--lanes", lanes)
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--lanes", lanes,
                                   "--duration", "600", "--live")
        pktgen.wait_to_say("Mpps")
        daemon.send(signal.SIGKILL)
        self.ends_with(pktgen, 1, "^sluice-pktgen: ", "the link to the aggregator went down")
        self.assertEqual(daemon.wait(), -signal.SIGKILL)  # its port may be removed before its end

    def test_the_aggregator_is_silent(self):
        daemon = self.start_daemon()
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--duration", "600", "--live",
                                   "--aggregator-timeout", 1)
        pktgen.wait_to_say("Mpps")
        with harness.stopped(daemon):
            self.ends_with(pktgen, 1, "^sluice-pktgen: ",
                           "aggregator 0 is declared failed: nothing was received for 1 s")

    def test_a_lane_fails(self):
        """This process may not use its core: the other lane ends, too."""
        daemon = self.start_daemon("--lanes", 2)
        core = min(os.sched_getaffinity(0))
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--lanes", 2,
                                   "--cpu", f"{core},1023", "--duration", "600")
        self.refuses(pktgen, 1, "^sluice-pktgen: cannot run on core 1023")

    def test_what_the_aggregator_refuses(self):
        daemon = self.start_daemon()
        pktgen = self.start_pktgen("--aggregator", daemon.address, "--workers", "256",
                                   "--streams", "1024")
        self.refuses(pktgen, 1, "^sluice-pktgen: ", "does not accept memory .* limit is 64")

    def test_wrong_options(self):
        aggregator = ("--aggregator", "vhost:" + self.place)
        for flags, saying in (
                ([*aggregator, "--workers", "300"], "--workers '300': allowed: 1..256"),
                (["--frame", "575"], "--frame '575': allowed: 576..9698"),
                ([*aggregator, "--block-elements", "4000", "--frame", "9000"],
                 "--block-elements '4000': allowed: 1..2206 of float in frames of 9000 B"),
                (["--density", "2"], "--density '2': allowed: 0..1"),
                (["--loss", "-1"], "--loss '-1': allowed: 0..0.5"),
                (["--aggregator-timeout", "0"], "--aggregator-timeout '0': allowed: 0.1..600"),
                (["--type", "int4"], "--type 'int4': allowed: float, double"),
                ([*aggregator, "--cpu", "0,1"], "--cpu '0,1': allowed: one core"),
                ([*aggregator, "--lanes", "9"], "--lanes '9': allowed: 1..8"),
                ([*aggregator, "--lanes", "2", "--cpu", "0"], "--cpu '0': allowed: 2 cores"),
                ([*aggregator, "--lanes", "3", "--streams", "2"],
                 "--lanes '3': allowed: at most as many as streams, 2"),
                (["--aggregator", "10.0.0.999"], "--aggregator .*10.0.0.999"),
                (["--no-such-flag"], "no-such-flag"),
                ([*aggregator, "--json", self.place], "is a directory")):
            with self.subTest(flags=flags):
                pktgen = self.start_pktgen(*flags)
                self.refuses(pktgen, 2, "^sluice-pktgen: ", saying)

    def test_a_pci_port_needs_hugepages_and_the_device(self):
        """Free hugepages are missed first, then the device; no test machine has both."""
        pktgen = self.start_pktgen("--aggregator", "10.0.0.9", "--port", "0000:ff:1f.7",
                                   "--address", "10.0.0.2/24", "--frame", "9000")
        self.ends_with(pktgen, 1, "^sluice-pktgen: port '0000:ff:1f.7': ",
                       "DPDK does not start with .* MiB of hugepages: .*; free hugepages and "
                       "access to them are expected$|"
                       "this machine has no PCI device 0000:ff:1f.7$")

    def test_no_aggregator(self):
        self.refuses(self.start_pktgen(), 2, "^sluice-pktgen: no aggregator")
        pktgen = self.start_pktgen("--aggregator", "vhost:/no/such")
        self.refuses(pktgen, 1, "^sluice-pktgen: ", "'/no/such' is missing")
        pktgen = self.start_pktgen("--in-memory", "--cpu", "1023")
        self.refuses(pktgen, 1, "^sluice-pktgen: ", "cannot run on core 1023")


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class PktgenOnANetwork(Reports, harness.NetworkTest):
    def test_over_af_packet(self):
        """With ARP, checksums and a CRC32C in every packet."""
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0)
        pktgen = self.start_rank(0, 1, daemon, "sluice-pktgen", *self.short_run(),
                                 "--workers", "4", "--streams", "8", "--rounds", "16")
        self.check_against_daemon(self.report_of(pktgen), daemon)

    def test_lanes_over_af_packet(self):
        """The kernel spreads frames over the queues in its own way, on both sides."""
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2)
        pktgen = self.start_rank(0, 1, daemon, "sluice-pktgen", *self.short_run(), "--lanes", 2,
                                 "--workers", "16", "--streams", "8", "--rounds", "16")
        report = self.report_of(pktgen)
        self.assertGreater(report["measured"]["generator"]["handed_over"], 0)
        self.check_against_lanes(report, daemon)
        self.assertGreater(sum(self.counter(daemon, "rx_handed_over", lane) for lane in (0, 1)), 0)

    def test_lanes_of_a_device_that_spreads_by_ports(self):
        """All packets after a rank's first HELLOs to a lane come to the right lane."""
        self.make_network(workers=1, aggregators=1)
        lanes, workers = 2, 16
        daemon = self.start_aggregator(0, "--lanes", lanes, STEERING_RSS="on",
                                       LD_PRELOAD=harness.program("libsteering_device.so"))
        pktgen = self.start_rank(0, 1, daemon, "sluice-pktgen", *self.short_run(),
                                 "--lanes", lanes, "--workers", workers, "--streams", 8,
                                 "--rounds", 16)
        report = self.report_of(pktgen)
        self.check_against_lanes(report, daemon)
        self.assertLessEqual(
            sum(self.counter(daemon, "rx_handed_over", lane) for lane in range(lanes)),
            HELLOS * lanes * workers)

    def test_an_aggregator_with_other_lanes(self):
        """The session has it; pktgen ends the session, so the next one forms at once."""
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0)
        pktgen = self.start_rank(0, 1, daemon, "sluice-pktgen", "--lanes", 2)
        self.refuses(pktgen, 1, "^sluice-pktgen: --lanes is 2, but the aggregator has 1$")
        daemon.wait_to_say("job 1: ended")
        self.report_of(self.start_rank(0, 1, daemon, "sluice-pktgen", *self.short_run()))

    def test_a_device_with_too_few_queues(self):
        self.make_network(workers=1, aggregators=1)
        daemon = self.start_aggregator(0, "--lanes", 2)
        for device, saying in (
                (f"{af_packet.DEVICE},qpairs=1", "qpairs=1.*: 2 queues, the device has 1"),
                (af_xdp.DEVICE, "2 queues, but interface port0 has 1")):
            pktgen = self.start_rank(0, 1, daemon, "sluice-pktgen", "--lanes", 2,
                                     SLUICE_PORT=device)
            self.ends_with(pktgen, 1, saying)


if __name__ == "__main__":
    harness.main()
