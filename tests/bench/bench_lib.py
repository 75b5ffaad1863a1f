#!/usr/bin/env python3
"""The parts of bench/lib that decide what a measurement means."""
import os
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "bench", "lib"), os.path.join(ROOT, "scripts", "lib")]

import contestants  # noqa: E402
import convergence  # noqa: E402
import figures  # noqa: E402
import kernels  # noqa: E402
import placement  # noqa: E402
import ranks  # noqa: E402
import results  # noqa: E402
import rounds  # noqa: E402
import scaling  # noqa: E402
import sparse_peers  # noqa: E402
import testpmd  # noqa: E402

POINT = contestants.Point(ranks=2, bytes=1 << 20, density=0.1)


def round_of(label="same-core", counts=True, point=POINT, **values):
    return rounds.Round(point, 0, label, counts, [50.0], values)


class Placements(unittest.TestCase):
    def test_a_round_has_one_placement_or_changed(self):
        self.assertEqual(placement.label([55, 60]), "same-core")
        self.assertEqual(placement.label([130, 260]), "same-socket")
        self.assertEqual(placement.label([340, 330]), "other-socket")
        self.assertEqual(placement.label([55, 340, 55]), "changed")

    def test_the_first_two_cores_are_looked_at(self):
        self.assertEqual(placement.core_pair({3, 1, 2}), ["1", "2"])
        self.assertEqual(placement.core_pair({5}), ["5", "5"])


class Medians(unittest.TestCase):
    def test_only_rounds_that_count_are_used(self):
        good, bad = round_of(), round_of("other-socket", counts=False)
        self.assertEqual(results.usable([bad, good]), [good])
        self.assertEqual(results.usable([bad]), [bad])

    def test_a_ratio_is_taken_within_each_round(self):
        some = [round_of(sluice=1.0, gloo=10.0), round_of(sluice=100.0, gloo=200.0),
                round_of(sluice=2.0, gloo=6.0)]
        self.assertEqual(results.ratios(some, ["gloo"]), [10, 2, 3])
        self.assertEqual(results.median(results.ratios(some, ["gloo"])), 3)

    def test_the_better_peer_is_the_faster_one_of_a_round(self):
        some = [round_of(sluice=1.0, gloo=3.0, openmpi=2.0),
                round_of(sluice=1.0, gloo=4.0, openmpi=5.0)]
        self.assertEqual(results.ratios(some, ["gloo", "openmpi"]), [2, 4])

    def test_a_round_without_all_values_gives_no_ratio(self):
        some = [round_of(gloo=3.0), round_of(sluice=1.0), round_of(sluice=2.0, gloo=3.0)]
        self.assertEqual(results.ratios(some, ["gloo"]), [1.5])
        self.assertIsNone(results.median([]))

    def test_the_summary_tells_what_was_dropped(self):
        some = [round_of(sluice=2.0, gloo=6.0),
                round_of("other-socket", counts=False, sluice=9.0, gloo=9.0)]
        sluice, gloo = results.summary(some)
        self.assertEqual((sluice["contestant"], sluice["time_us"], sluice["ratio"]),
                         ("sluice", 2, 1))
        self.assertEqual((gloo["ratio"], gloo["rounds"], gloo["dropped"], gloo["placement"]),
                         (3, 1, 1, "1 same-core"))

    def test_tables_tell_times_and_ratios(self):
        table = results.comparison([round_of(sluice=2000.0, gloo=5000.0)], ["sluice", "gloo", "x"])
        row = "| 2 | 1M | 0.1 | random | 2.00 ms | 5.00 ms (2.50x) | - | 1 same-core |"
        self.assertIn(row, table)


class Names(unittest.TestCase):
    def test_sizes(self):
        for size, name in ((0, "0"), (4, "4"), (1 << 10, "1K"), (100 << 20, "100M"), (1500, "1500"),
                           (3 << 30, "3G")):
            self.assertEqual(results.size_name(size), name)
            self.assertEqual(results.parse_size(name), size)

    def test_times(self):
        for time, name in ((0.52, "0.52 us"), (14.6, "14.6 us"), (999.0, "999 us"),
                           (1910.0, "1.91 ms"), (152e3, "152 ms"), (1.2656e6, "1.27 s"),
                           (None, "")):
            self.assertEqual(results.time_name(time), name)


class FakePlacement:
    """Every other round is far."""

    def __init__(self):
        self.looks = 0

    def look(self):
        self.looks += 1
        return 400.0 if (self.looks - 1) // 3 % 2 == 0 else 60.0


class FakeContestant:
    def __init__(self, name, log, fails=False):
        self.name, self.log, self.fails = name, log, fails

    def takes(self, point):
        return True

    def start(self, stage, number_of_ranks):
        self.log.append(f"start {number_of_ranks}")

    def stop(self):
        self.log.append("stop")

    def measure(self, point, seed, check):
        self.log.append((self.name, seed, check))
        if self.fails:
            raise ranks.WrongSums("7 elements are wrong")
        return {self.name: 1.0}


class Rounds(unittest.TestCase):
    journal = rounds.NO_JOURNAL

    def run_rounds(self, wanted, accepted, fails=False):
        self.log = []
        takers = [FakeContestant("a", self.log), FakeContestant("b", self.log, fails)]
        with mock.patch.object(placement, "Placement", FakePlacement), \
                mock.patch.object(rounds, "show"):
            return rounds.run([POINT], takers, wanted, accepted, journal=self.journal)

    def test_rounds_go_on_until_enough_count(self):
        done = self.run_rounds(2, ["same-core"])
        self.assertEqual([r.label for r in done], 2 * ["other-socket", "same-core"])
        self.assertEqual([r.counts for r in done], [False, True, False, True])

    def test_rounds_end_when_none_counts(self):
        self.assertEqual(len(self.run_rounds(2, ["same-socket"])), 6)

    def test_contestants_take_turns_and_are_checked_once(self):
        self.run_rounds(2, ["same-core", "other-socket"])
        self.assertEqual(self.log, ["start 2", "start 2", ("a", 1, True), ("b", 1, True),
                                    ("b", 2, False), ("a", 2, False), "stop", "stop"])

    def test_wrong_sums_have_no_time(self):
        this, = self.run_rounds(1, ["other-socket"], fails=True)
        self.assertEqual(this.values, {"a": 1.0})
        self.assertEqual(this.wrong, ["b: 7 elements are wrong"])


    def test_a_journal_goes_on_where_it_was_stopped(self):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "row.jsonl")
            first, second = contestants.Point(2, 8), contestants.Point(2, 16)
            journal = rounds.Journal(path)
            self.assertEqual(journal.rounds_of([first]), [])
            kept = round_of("same-socket", point=first, sluice=2.0)
            kept.wrong.append("7 elements")
            journal.add(kept)
            self.assertEqual(journal.rounds_of([first, second]), [kept])
            self.assertEqual(journal.rounds_of([second]), [])

    def test_what_is_in_the_journal_is_not_measured_again(self):
        with tempfile.TemporaryDirectory() as place:
            self.journal = rounds.Journal(os.path.join(place, "row.jsonl"))
            self.run_rounds(1, ["same-core"])
            first = self.log
            done = self.run_rounds(1, ["same-core"])
            self.assertEqual([r.counts for r in done], [False, True])
            self.assertEqual((len(first), self.log), (8, []))
            self.run_rounds(2, ["other-socket"])
            self.assertIn(("a", 3, False), self.log)  # the third round

    def test_no_round_begins_when_time_is_up(self):
        self.journal = rounds.Journal(deadline=0)
        with self.assertRaises(rounds.TimeIsUp):
            self.run_rounds(1, ["same-core"])
        self.assertEqual(self.log, ["start 2", "start 2", "stop", "stop"])


class Ways(unittest.TestCase):
    FORMED = "job 0: formed, 2 ranks\n"

    def test_what_was_asked_for_must_have_happened(self):
        contestants.PACKETS.require(self.FORMED, "sluice")
        contestants.HOST.require("", "sluice")
        for way, log in ((contestants.PACKETS, ""), (contestants.HOST, self.FORMED),
                         (contestants.HOST, contestants.NO_REGION),
                         (contestants.HOST_ORDINARY, contestants.UNREACHED)):
            with self.subTest(way=way, log=log), self.assertRaises(contestants.WrongWay):
                way.require(log, "sluice")
        contestants.HOST_ORDINARY.require(contestants.NO_REGION, "sluice")

    def test_each_takes_what_it_can(self):
        dense, sparse, small = (contestants.Point(2, 1 << 20), contestants.Point(2, 1 << 20, 0.1),
                                contestants.Point(2, 8))
        bitmap, ceiling = contestants.named("sluice-bitmap", "ceiling")
        self.assertEqual([bitmap.takes(p) for p in (dense, sparse, small)], [False, True, False])
        self.assertEqual([ceiling.takes(p) for p in (dense, sparse, small)], [True, True, False])


class RankGroups(unittest.TestCase):
    def test_the_slowest_rank_is_what_counts(self):
        self.assertEqual(ranks.slowest([[1.0, 5.0], [2.0, 3.0]]), [2, 5])

    def test_requests_say_what_sluice_perf_is_told(self):
        line = ranks.request_line("ring", POINT, seed=3, iterations=5, check=True)
        self.assertEqual(line, "ring 262144 102 random 3 1 5 1")
        self.assertEqual(ranks.nonzero_blocks(10, 0.25), 3)

    def test_ranks_are_asked_together(self):
        self.assertEqual(self.answers_of("1.5 4.0 wrong 0", "2.5 3.0 wrong 0"), [2.5, 4.0])

    def test_wrong_elements_are_an_error(self):
        with self.assertRaisesRegex(ranks.WrongSums, "^3 elements are wrong"):
            self.answers_of("1.0 wrong 1", "1.0 wrong 2")

    def answers_of(self, *lines):
        """Of a group whose ranks answer with these lines."""
        with tempfile.TemporaryDirectory() as place:
            threads = []

            def launch(path):
                for number, line in enumerate(lines):
                    thread = threading.Thread(target=self.be_rank, args=(path, number, line))
                    thread.start()
                    threads.append(thread)

            group = ranks.RankGroup(os.path.join(place, "socket"), len(lines), launch)
            try:
                return group.run("request")
            finally:
                group.close()
                for thread in threads:
                    thread.join()

    @staticmethod
    def be_rank(path, number, line):
        with socket.socket(socket.AF_UNIX) as driver:
            driver.connect(path)
            with driver.makefile("rw", encoding="ascii") as talk:
                print(number, file=talk, flush=True)
                if talk.readline() == "request\n":
                    print(line, file=talk, flush=True)


class Figures(unittest.TestCase):
    def verdict(self, ratio, threshold, target, most=False):
        return figures.Figure("", [ratio], threshold, target, most=most).verdict()

    def test_verdicts(self):
        self.assertEqual([self.verdict(r, 1.3, 2.0) for r in (1.2, 1.3, 2.0)],
                         ["missed", "pass", "target"])
        self.assertEqual([self.verdict(r, 1.1, 1.0, most=True) for r in (1.2, 1.1, 1.0)],
                         ["missed", "pass", "target"])
        self.assertEqual(figures.Figure("", [], 1, 1).verdict(), "missed")
        self.assertEqual([self.verdict(1.0, None, target) for target in (None, 1.0, 1.1)],
                         ["to compare", "target", "below target"])
        self.assertEqual(self.verdict(2.0, 1.5, None), "pass")

    def test_groups_name_rows(self):
        for rows in figures.GROUPS.values():
            self.assertLessEqual(set(rows), set(figures.ROWS))


class Convergence(unittest.TestCase):
    MODEL = "language model with SGD"

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = os.path.join(place.name, "convergence.csv")

    def run_of(self, contestant, seed):
        return convergence.Run(self.MODEL, contestant, seed, 100, 2)

    def keep(self, contestant, seed, last_loss, bytes_of_a_step):
        """Losses fall to `last_loss`, which the last 50 of 100 steps have."""
        convergence.Runs(self.path).add(self.run_of(contestant, seed),
                                        {"losses": [9.0] * 50 + [last_loss] * 50,
                                         "bytes_sent": [bytes_of_a_step] * 100})

    def test_the_last_50_losses_and_all_bytes_are_kept(self):
        self.keep("exact", 1, 2.0, 10)
        self.keep("bf16", 2, 3.0, 5)
        kept = convergence.Runs(self.path)
        self.assertIn(self.run_of("bf16", 2), kept)
        self.assertNotIn(self.run_of("bf16", 1), kept)
        self.assertEqual((kept.loss(self.run_of("bf16", 2)), kept.bytes(self.run_of("bf16", 2))),
                         (3, 500))
        self.assertEqual(kept.loss(self.run_of("exact", 1)), 2)

    def test_contestants_are_compared_by_seeds_that_both_have(self):
        for seed, exact, bf16 in ((1, 2.0, 2.2), (2, 4.0, 4.4)):
            self.keep("exact", seed, exact, 10)
            self.keep("bf16", seed, bf16, 5)
        self.keep("exact", 3, 100.0, 1000)
        table = list(convergence.table(convergence.Runs(self.path), self.MODEL, [1, 2, 3], 100, 2))
        self.assertEqual([row[0] for row in table], ["exact", "bf16"])
        self.assertEqual(table[1][1:], ["3.3000", "2.200, 4.400", "+10.00 %", "0.0 MB", "2.0"])

    def test_what_diverges_is_told(self):
        self.keep("exact", 1, 2.0, 10)
        self.keep("bf16", 1, float("nan"), 5)
        table = list(convergence.table(convergence.Runs(self.path), self.MODEL, [1], 100, 2))
        self.assertEqual(table[1][3], "diverges")

    def test_names_can_stand_in_a_list(self):
        for name in [*convergence.names(), *convergence.MODELS]:
            self.assertNotIn(",", name)
        for model in convergence.MODELS:
            self.assertEqual(convergence.contestants_of(model)[0].name, convergence.EXACT)


class SparsePeers(unittest.TestCase):
    def table(self, rate):
        """Of a sum whose second rank's link carries the most."""
        rows = [{"algorithm": "ring", "time_us": time, "sent": [1_000_000, 2_000_000],
                 "received": [1_000_000, 2_500_000], "bound": 3_000_000} for time in (500e3, 250e3)]
        point = sparse_peers.Point(2, 1 << 20, 0.1, rate=rate)
        done = [round_of(point=point, **sparse_peers.values_of(rows))]
        return sparse_peers.table(done, ["ring"]).splitlines()[-1]

    def test_links_with_a_rate_need_time(self):
        self.assertIn("| 375 ms | 2.0 | 2.5 | 3.0 | 200 ms | 0.53 | 1 same-core |", self.table(100))

    def test_memory_has_no_rate(self):
        self.assertIn("| 375 ms | 2.0 | 2.5 | 3.0 | 1 same-core |", self.table(None))


class Programs(unittest.TestCase):
    def test_kernel_rates_keep_their_repetitions(self):
        row = {"run_type": "iteration", "run_name": "read"}
        report = {"benchmarks": [{**row, "repetition_index": 1, "bytes_per_second": 2e9},
                                 {**row, "repetition_index": 0, "bytes_per_second": 1e9},
                                 {**row, "run_type": "aggregate", "bytes_per_second": 9e9}]}
        self.assertEqual(kernels.parse(report), {"read": [1, 2]})

    def test_testpmd_tells_rates(self):
        text = ("  RX-packets: 5  RX-missed: 0\n  Throughput (since last show)\n"
                "  Rx-pps:      3280229          Rx-bps:  39000000000\n"
                "  Tx-pps:      3280228          Tx-bps:  39000000000\n")
        self.assertEqual(testpmd.RATE.findall(text), [("3280229", "3280228")])

    def test_tensors_of_all_ranks_fit(self):
        for shape in scaling.AXES["size"]() + scaling.AXES["ranks"]():
            self.assertLessEqual(2 * shape.ranks * shape.bytes, 8 << 30)
        self.assertEqual(max(shape.bytes for shape in scaling.AXES["size"]()), 1 << 30)


if __name__ == "__main__":
    unittest.main()
