#!/usr/bin/env python3
"""The sparse collectives of bench/lib/peers/sparse: right sums on 2 to 4 ranks, bytes within what
each algorithm promises, a checker that finds wrong sums, and as root links with a rate. Needs Open
MPI. `FILE BUILD`."""
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "bench", "lib"), os.path.join(ROOT, "scripts", "lib"),
                os.path.join(ROOT, "tests", "system")]

import checkout  # noqa: E402
import harness  # noqa: E402
import processes  # noqa: E402
import programs  # noqa: E402
import sparse_peers  # noqa: E402

COMMAND = os.path.join(ROOT, "bench", "sparse-peers")
ELEMENTS, DENSITY, ITERATIONS = 20011, 0.05, 4  # an odd number: ranges and buckets are not full
# Of a bound: Ok-Topk delivers somewhat more than k pairs, keys are not spread quite evenly, and a
# few messages have counts.
TOLERANCE, COUNT_BYTES = 1.15, 400
ALL_PLACEMENTS = "same-core,same-socket,other-socket,changed"


def table_of_all(*flags):
    """What the command prints of all algorithms on one small sum."""
    command = [COMMAND, "--build", checkout.build, "--workers", "2", "--elements", "20K",
               "--densities", "0.01", "--keys", "random", "--rounds", "1", "--placement",
               ALL_PLACEMENTS, *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stderr}")
    return done.stdout


class SparsePeers(unittest.TestCase):
    def run_program(self, number_of_ranks, **flags):
        with processes.Stage() as stage:
            return sparse_peers.run(stage, programs.compiled(sparse_peers.SOURCES),
                                    number_of_ranks, flags)

    def rows(self, number_of_ranks, **flags):
        """By algorithm; every sum, also of the warm-up, was checked."""
        peers = sparse_peers.SparsePeers(iterations=ITERATIONS, checks="every")
        with processes.Stage() as stage:
            peers.start(stage, number_of_ranks)
            point = sparse_peers.Point(number_of_ranks, ELEMENTS, DENSITY, **flags)
            rows = peers.rows(point, seed=number_of_ranks, check=True)
        self.assertEqual(len(rows), ITERATIONS * len(sparse_peers.ALGORITHMS))
        return {name: [row for row in rows if row["algorithm"] == name]
                for name in sparse_peers.ALGORITHMS}

    def test_sums_are_right_and_bytes_within_the_bound(self):
        for number_of_ranks in (2, 3, 4):
            with self.subTest(ranks=number_of_ranks):
                for name, rows in self.rows(number_of_ranks).items():
                    for row in rows:
                        most = max(row["sent"] + row["received"])
                        self.assertLess(most, TOLERANCE * row["bound"] + COUNT_BYTES, row)
                        self.assertEqual(len(row["sent"]), number_of_ranks)
                        self.assertEqual(sum(row["sent"]), sum(row["received"]), name)

    def test_sums_of_popular_keys_are_right(self):
        for number_of_ranks in (2, 3, 4):
            with self.subTest(ranks=number_of_ranks):
                self.rows(number_of_ranks, keys="zipf")

    def test_thresholds_used_again_and_ranges_proposed_again(self):
        flags = {"algorithms": "ok-topk,ok-topk-from-dense", "elements": ELEMENTS,
                 "density": DENSITY, "iterations": 60, "tau": 7, "tau-prime": 5, "check": "every"}
        status, out, err = self.run_program(3, **flags)
        self.assertEqual((status, len(out.splitlines())), (0, 120), err)

    def test_edges(self):
        for elements, density in ((1, 1), (3, 1), (5, 0.2), (1025, 1)):
            with self.subTest(elements=elements):
                names = [n for n in sparse_peers.ALGORITHMS if not n.startswith("ok-topk")]
                status, _, err = self.run_program(
                    4, elements=elements, density=density, algorithms=",".join(names),
                    check="every")
                self.assertEqual(status, 0, err)

    def test_the_checker_finds_wrong_sums(self):
        done = subprocess.run([programs.compiled(sparse_peers.SOURCES), "--self-test"], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_flags_are_named(self):
        for flags, said in (
                ({"density": "2"}, "sparse: --density 2: expected a number from 1e-09 to 1"),
                ({"elements": "5x"}, "sparse: --elements 5x: expected a number from 1 to"),
                ({"keys": "same"}, "sparse: --keys same: expected one of random, zipf"),
                ({"algorithms": "ring"}, "sparse: --algorithms ring: expected some of ssar-"),
                ({"tau": "0"}, "sparse: --tau 0: expected a number from 1"),
                ({"size": "1"}, "sparse: --size 1: expected --algorithms, ")):
            with self.subTest(flags=flags):
                status, out, err = self.run_program(2, **flags)
                self.assertEqual((status, out), (sparse_peers.USAGE, ""))
                self.assertIn(said, err)
        status, _, err = self.run_program(1)
        self.assertEqual(status, sparse_peers.USAGE)
        self.assertIn("sparse: ranks 1: expected 2 or more", err)

    def test_the_command_prints_one_table(self):
        said = table_of_all()
        for name in [*sparse_peers.FORMS, *sparse_peers.ALGORITHMS]:
            self.assertRegex(said, rf"\| 2 \| 20K \| 0.01 \| random \| {name} \| \d")

    def test_the_command_names_bad_arguments(self):
        for flag, value, said in (("--workers", "1", "'1': expected whole numbers from 2"),
                                  ("--keys", "x", "'x': expected some of random, zipf"),
                                  ("--densities", "0", "'0': expected numbers from"),
                                  ("--rounds", "0", "--rounds 0: expected 1 or more"),
                                  ("--rate", "200", "--rate needs --transport af_packet")):
            with self.subTest(flag=flag):
                done = subprocess.run([COMMAND, flag, value], check=False, capture_output=True,
                                      text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(said, done.stderr)


@unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
class OverLinks(harness.SystemTest):
    def start_on_hosts(self, *command):
        return self.start("mpirun", sys.executable, sparse_peers.MPIRUN_ON_HOSTS, "--workers", 2,
                          "--rate", 10, "--", *command)

    def test_the_command_tells_what_the_links_need(self):
        said = table_of_all("--transport", "af_packet", "--rate", "10", "--iterations", "1")
        self.assertIn("| link needs | of time |", said)
        shares = {name: float(share) for name, share in
                  re.findall(r"random \| (\S+) \|.* \| (\d+\.\d\d) \| [^|]* \|\n", said)}
        self.assertEqual(list(shares), [sparse_peers.SLUICE, sparse_peers.SLUICE_DENSE,
                                        *sparse_peers.ALGORITHMS])
        # Those of many bytes: what a bucket holds goes at once.
        for name in ("sluice-dense", "dsar-split-allgather"):
            self.assertLess(shares[name], 1.25, said)

    def test_each_rank_has_a_host_with_a_shaped_link(self):
        mpirun = self.start_on_hosts("sh", "-c", "echo $(hostname) $(hostname -I)"
                                     " $(tc qdisc show dev port0 | grep -o 'rate [^ ]*')")
        self.assertEqual(mpirun.wait(), 0)
        self.assertEqual(sorted(mpirun.out.splitlines()),
                         ["w0 10.77.1.1 rate 10Mbit", "w1 10.77.1.2 rate 10Mbit"])

    def test_a_rank_that_fails_ends_all(self):
        mpirun = self.start_on_hosts("sh", "-c", "[ $(hostname) = w1 ] && exit 3; sleep 1000")
        self.assertEqual(mpirun.wait(), 3, mpirun.err)

    def test_an_interrupt_leaves_nothing(self):
        mpirun = self.start_on_hosts("sh", "-c",
                                     "echo $$ $(readlink /proc/self/ns/net); sleep 1000")
        mpirun.wait_to_say(r"(?s)net.*net.*\n")
        ranks = [line.split() for line in mpirun.out.splitlines()]
        mpirun.send(signal.SIGINT)
        self.assertEqual(mpirun.wait(), 128 + signal.SIGINT)
        for pid, _ in ranks:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))
        namespaces = subprocess.run(["lsns", "--type", "net", "--noheadings", "--output", "NS"],
                                    check=True, capture_output=True, text=True).stdout
        for _, namespace in ranks:
            self.assertNotIn(re.search(r"\d+", namespace)[0], namespaces.split())
        self.assertEqual([name for name in os.listdir(self.place) if name.startswith("sluice-")],
                         [])


if __name__ == "__main__":
    if not (shutil.which("mpicxx") and shutil.which("mpirun")):
        print("skipped: sparse_peers: needs Open MPI (libopenmpi-dev, openmpi-bin)")
        sys.exit(harness.SKIPPED)
    harness.main()
