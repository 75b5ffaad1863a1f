"""sluice-perf with a real aggregator: right results end with 0, wrong ones do not, and the JSON
file has what the table has."""
import json
import os

import harness

KEYS = ("size_bytes", "count", "type", "redop", "ranks", "density", "union_density", "overlap",
        "memory", "time_us_median", "time_us_min", "algbw_gbps", "busbw_gbps", "wrong",
        "wire_bytes", "retransmits")


class Perf(harness.SystemTest):
    def run_perf(self, ranks, *flags, aggregators=1, **settings):
        """Rank 0's process, and the rows that it wrote."""
        daemons = [self.start_daemon("--shard", s, "--shards", aggregators, name=f"a{s}")
                   for s in range(aggregators)]
        path = os.path.join(self.place, "rows.json")
        job = self.start_job(ranks, ",".join(d.address for d in daemons), "sluice-perf", *flags,
                             "--json", path, **settings)
        self.all_end_well(job)
        for daemon in daemons:
            self.ends_on_signal(daemon)
        with open(path, encoding="utf-8") as file:
            return job[0], json.load(file)

    def check_rows(self, rows, ranks):
        for row in rows:
            with self.subTest(row=row):
                self.assertLessEqual(set(KEYS), set(row))
                self.assertEqual(row["wrong"], 0)
                self.assertEqual(row["ranks"], ranks)
                self.assertGreaterEqual(row["time_us_median"], row["time_us_min"])
                self.assertGreater(row["time_us_min"], 0)
                self.assertGreaterEqual(row["union_density"], 0)
                self.assertLessEqual(row["union_density"], 1)
                self.assertGreaterEqual(row["algbw_gbps"], 0)

    def test_sizes_and_densities(self):
        rank, rows = self.run_perf(2, "-b", "4", "-e", "1M", "-f", "4", "--density", "1,0.1,0.01",
                                   "-n", "5", "-w", "1", aggregators=2)
        self.check_rows(rows, 2)
        self.assertEqual(len(rows), 10 * 3 * 2)  # in and out of place
        sizes = sorted({row["size_bytes"] for row in rows})
        self.assertEqual(sizes, [4 ** k for k in range(1, 11)])
        self.assertRegex(rank.out, r"# Out of bounds values : 0 OK")
        self.assertRegex(rank.out, r"# Avg bus bandwidth    : \d")
        wire = {row["density"]: row["wire_bytes"] for row in rows if row["size_bytes"] == 1 << 20}
        self.assertLess(wire[0.01], wire[0.1] / 4)
        self.assertLess(wire[0.1], wire[1] / 2)

    def test_types_and_reductions(self):
        _, rows = self.run_perf(4, "-b", "40K", "-e", "40K", "-d", "all", "-o", "all", "--density",
                                "0.3", "-n", "2", "-w", "1")
        self.check_rows(rows, 4)
        pairs = 4 * 5 + 5 * 8  # bitwise reductions are those of integers
        self.assertEqual(len(rows), 2 * pairs)
        self.assertEqual(len({(row["type"], row["redop"]) for row in rows}), pairs)

    def test_blocks_of_all_ranks_overlap(self):
        self.check_union("all", 0.1)

    def test_no_blocks_overlap(self):
        self.check_union("none", 0.2)

    def check_union(self, overlap, union):
        _, rows = self.run_perf(2, "-b", "1M", "-e", "1M", "--density", "0.1", "--overlap", overlap,
                                "--bitmap", "-n", "2", "-w", "1")
        self.check_rows(rows, 2)
        for row in rows:
            self.assertAlmostEqual(row["union_density"], union, delta=0.01)

    def test_memory(self):
        for memory in ("shared", "ordinary"):
            with self.subTest(memory=memory):
                rank, rows = self.run_perf(2, "-b", "5M", "-e", "5M", "-n", "2", "-w", "1",
                                           "--memory", memory)
                self.check_rows(rows, 2)
                self.assertEqual({row["memory"] for row in rows}, {memory})
                self.assertIn(f" memory {memory} ", rank.out)

    def test_wrong_results_are_noticed(self):
        """Ranks that fill their tensors from different seeds: each sum is wrong for all of them."""
        daemon = self.start_daemon()
        job = [self.start_rank(r, 2, daemon, "sluice-perf", "-b", "64K", "-e", "64K", "-n", "1",
                               "-w", "1", "--seed", 1 + r) for r in range(2)]
        for rank in job:
            self.assertEqual(rank.wait(), 1)
        self.assertRegex(job[0].out, r"# Out of bounds values : [1-9]\d* FAILED")

    def test_wrong_flags(self):
        for flags, saying in ((["-b", "many"], "--minbytes 'many': allowed: 0..1024G"),
                              (["--density", "2"], "--density '2': allowed: numbers 0..1"),
                              (["-d", "int4"], "--datatype 'int4': allowed: float, double"),
                              (["--memory", "arena"], "--memory 'arena': allowed: shared"),
                              (["-o", "product"], "--op 'product': allowed: sum, min, max, avg"),
                              (["--no-such-flag"], "no-such-flag"),
                              (["--json", self.place], "is a directory")):
            with self.subTest(flags=flags):
                rank = self.start_rank(0, 1, "vhost:" + self.place, "sluice-perf", *flags)
                self.refuses(rank, 2, "^sluice-perf: ", saying)

    def test_an_aggregator_that_is_not_there(self):
        rank = self.start_rank(0, 1, "vhost:/no/such", "sluice-perf", "-b", "4", "-e", "4")
        self.ends_with(rank, 1, "^sluice-perf: rank 0: ", "'/no/such' is missing")


if __name__ == "__main__":
    harness.main()
