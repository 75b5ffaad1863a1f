"""Hosts of several ranks under aggregators: the ranks of a host sum among themselves, and hosts
through the aggregators. If one of them fails, all others get an error that names it and the
reason."""
import os
import signal
import unittest

import harness

LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait
RANKS_PER_HOST = 2


class HostsTest(harness.SystemTest):
    def start_rank(self, rank, ranks, daemon, *command, **settings):
        host = f"test-{os.getpid()}-{rank // RANKS_PER_HOST}"
        return super().start_rank(rank, ranks, daemon, *command,
                                  **{"SLUICE_HOST": host, "SLUICE_HOST_LEVEL": 1,
                                     "RANKS_PER_HOST": RANKS_PER_HOST, **settings})

    def fails(self, rank, code, *sayings):
        self.refuses(rank, 3, f"^rank \\d+: {code}", *sayings)


class Sums(HostsTest):
    def test_jobs_beside_each_other(self):
        daemon = self.start_daemon()
        jobs = [self.start_steady_job(ranks, daemon, elements=elements, in_flight=in_flight)
                for ranks, elements, in_flight in ((1, 1000, 1), (2, 20, 4), (4, 300_000, 3),
                                                   (5, 70_000, 2))]
        for job in jobs:
            self.end_steady_job(job)

    def test_of_pairs(self):
        daemon = self.start_daemon()
        jobs = [self.start_steady_job(ranks, daemon, elements=elements, in_flight=in_flight,
                                      PAIRS=1)
                for ranks, elements, in_flight in ((2, 20, 4), (4, 100_000, 2), (5, 30_000, 3))]
        for job in jobs:
            self.end_steady_job(job)

    def test_pairs_are_sent_by_hosts(self):
        """A key that several ranks of a host have is sent once."""
        daemon = self.start_daemon()
        sent = {}
        for level in (0, 1):
            job = self.start_steady_job(4, daemon, PAIRS=1, SLUICE_HOST_LEVEL=level,
                                        RANKS_PER_HOST=RANKS_PER_HOST if level else 1)
            self.end_steady_job(job)
            sent[level] = [int(rank.out.split("sent per sum: ")[1]) for rank in job]
            self.assertTrue(all(sent[level]), "each rank carries a range of keys")
        self.assertLess(sum(sent[1]), 0.9 * sum(sent[0]))

    def test_of_a_job_with_a_secret(self):
        secrets = os.path.join(self.place, "secrets")
        with open(os.open(secrets, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("* of-sixteen-letters\n")
        daemon = self.start_daemon("--secret-file", secrets)
        job = self.start_steady_job(4, daemon, SLUICE_SECRET="of-sixteen-letters",
                                    SLUICE_ENCRYPT_PACKETS=1)
        self.end_steady_job(job)

    def test_ranks_that_are_by_themselves(self):
        """A rank that may not share memory counts as a host of its own."""
        daemon = self.start_daemon()
        ranks = [self.start_rank(rank, 3, daemon, "steady_job", os.path.join(self.place, "stop"),
                                 20_000, 1, SLUICE_HOST=f"test-{os.getpid()}",
                                 SLUICE_HOST_LEVEL=0 if rank == 2 else 1)
                 for rank in range(3)]
        for rank in ranks:
            rank.wait_to_say("under way")
            rank.stop_file = os.path.join(self.place, "stop")
        self.end_steady_job(ranks)

    def test_an_aggregator_that_comes_back(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(4, daemon, elements=200_000, in_flight=2,
                                    SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
        self.restart(daemon)
        self.end_steady_job(job)

    def test_an_aggregator_that_comes_back_in_a_sum_of_pairs(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(4, daemon, elements=100_000, in_flight=2, PAIRS=1,
                                    SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
        self.restart(daemon)
        self.end_steady_job(job)


class Failures(HostsTest):
    def test_a_killed_rank_is_named_on_all_hosts(self):
        daemon = self.start_daemon()
        for dead, elements, pairs in ((0, 100_000, 0), (3, 50, 0), (2, 1_000_000, 0),
                                      (1, 20, 1), (2, 100_000, 1)):
            job = self.start_steady_job(4, daemon, elements=elements, in_flight=2, SLUICE_JOB=7,
                                        PAIRS=pairs)
            job[dead].send(signal.SIGKILL)
            del job[dead]
            for rank in job:
                self.ends_with(rank, 3, f"worker lost about rank {dead}: "
                               f"job 7: rank {dead} is lost")
        self.end_steady_job(self.start_steady_job(4, daemon, SLUICE_JOB=7))

    def test_a_stopped_rank_is_named_when_the_time_of_the_op_is_over(self):
        daemon = self.start_daemon("--liveness-timeout-ms", str(LONG))
        for pairs in (0, 1):
            job = self.start_steady_job(4, daemon, elements=100_000, SLUICE_OP_TIMEOUT_MS=3000,
                                        SLUICE_JOB=7, PAIRS=pairs)
            job[1].send(signal.SIGSTOP)
            for rank in (job[0], job[2], job[3]):
                self.ends_with(rank, 3, "op timed out", "job 7: ")
            job[1].send(signal.SIGCONT)
            self.ends_with(job[1], 3, "job 7: ")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_ranks_that_cannot_share_memory(self):
        """Their sockets are in different directories."""
        daemon = self.start_daemon()
        settings = {"SLUICE_JOIN_TIMEOUT_MS": 2000}
        first = self.start_rank(0, 2, daemon, "steady_job", self.place + "/never", **settings)
        hides = f"mkdir -p -m 700 /dev/shm/sluice-0; mount -t tmpfs -o mode=700 none " \
                f"/dev/shm/sluice-0"
        second = self.start_rank(1, 2, daemon, "unshare", "--mount", "--propagation", "private",
                                 "bash", "-euc", hides + '; exec "$0" "$@"',
                                 harness.program("steady_job"), self.place + "/never", **settings)
        self.assertEqual([first.wait(), second.wait()], [3, 3])
        self.assertRegex(first.err + second.err,  # by the one that has waited longer
                         r"formation failed: job 0: rank [01] did not join on this host within "
                         "2000 ms; with SLUICE_HOST_LEVEL=0 on all ranks")


if __name__ == "__main__":
    harness.main()
