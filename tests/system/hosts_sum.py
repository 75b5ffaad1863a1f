"""The ranks of one host sum among themselves, and nothing else is started. If one of
them fails, the others get an error at once that names it and the reason, and no other job is
affected."""
import itertools
import os
import signal
import time
import unittest

import harness

# The ways of tensors that are not from sluice::allocate, as in steady_job: other ranks read and
# write them in their rank's process, or they pass through slots.
WAYS = ({}, {"SLUICE_HOST_PROCESS_VM": 0})
UNREACHED = "other ranks of this host cannot access this process's memory"
LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait
NOBODY = ""     # in place of a daemon


class HostTest(harness.SystemTest):
    def environment(self, **settings):
        """Other tests run on this machine, too."""
        return super().environment(**{"SLUICE_HOST": f"test-{os.getpid()}", **settings})

    def joiner(self, rank, ranks=2, **settings):
        settings.setdefault("SLUICE_JOIN_TIMEOUT_MS", LONG)
        return self.start_joiner(rank, ranks, NOBODY, **settings)

    def fails(self, rank, code, *sayings):
        self.refuses(rank, 3, f"^rank \\d+: {code}", *sayings)

    def in_namespace(self, preparation):
        """A rank with a view of its own of the machine's files, as in a container."""
        return self.start("rank", "unshare", "--mount", "--propagation", "private", "bash", "-euc",
                          preparation + '; exec "$0" "$@"', harness.program("steady_job"),
                          self.place + "/never", SLUICE_RANK=0, SLUICE_WORLD_SIZE=2)


class Sums(HostTest):
    def test_jobs_beside_each_other(self):
        jobs = [self.start_steady_job(ranks, NOBODY, elements=elements, in_flight=in_flight, **way)
                for ranks, elements, in_flight in ((1, 1000, 1), (2, 20, 4), (4, 300_000, 3))
                for way in WAYS]
        for job in jobs:
            self.end_steady_job(job)
            for rank in job:
                self.assertNotIn(UNREACHED, rank.err)

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_of_a_rank_that_may_not_reach_others(self):
        """It has fewer privileges than the others; they can access it."""
        stop = os.path.join(self.place, "stop")
        job = [self.start_rank(0, 2, NOBODY, "steady_job", stop, 100_000),
               self.start("rank1", "setpriv", "--bounding-set", "-all",
                          harness.program("steady_job"), stop, 100_000, SLUICE_RANK=1,
                          SLUICE_WORLD_SIZE=2)]
        for rank in job:
            rank.stop_file = stop
            rank.wait_to_say("under way")
        self.end_steady_job(job)
        self.assertIn(UNREACHED + " (rank 1: Operation not permitted)", job[0].err)
        self.assertNotIn(UNREACHED, job[1].err)

    def test_of_a_job_with_a_secret(self):
        job = self.start_steady_job(3, NOBODY, SLUICE_SECRET="of-sixteen-letters")
        self.end_steady_job(job)

    def test_nothing_is_left(self):
        host = f"left-{os.getpid()}"
        self.end_steady_job(self.start_steady_job(3, NOBODY, SLUICE_HOST=host))
        names = os.listdir(f"/dev/shm/sluice-{os.geteuid()}")
        self.assertEqual([name for name in names if name.startswith(host + ".")], [])

    def test_two_hosts_of_one_machine_have_jobs_of_one_number(self):
        jobs = [self.start_steady_job(2, NOBODY, SLUICE_HOST=f"{name}-{os.getpid()}", SLUICE_JOB=7)
                for name in ("left", "right")]
        for job in jobs:
            self.end_steady_job(job)


class Deaths(HostTest):
    def test_a_killed_rank_is_named_at_once(self):
        """At any moment of its work; the job can be joined again."""
        other_job = self.start_steady_job(2, NOBODY)
        told = []
        sizes = ((3, 1, 100_000), (2, 0, 50), (4, 3, 1_000_000), (3, 2, 5000), (2, 1, 2_000_000),
                 (5, 0, 300_000))
        for (ranks, dead, elements), way in itertools.product(sizes, WAYS):
            job = self.start_steady_job(ranks, NOBODY, elements=elements, in_flight=2, SLUICE_JOB=7,
                                        **way)
            job[dead].send(signal.SIGKILL)
            killed = time.monotonic()
            del job[dead]
            for rank in job:
                self.ends_with(rank, 3, f"worker lost about rank {dead}: "
                               f"job 7: rank {dead} is lost: its process has ended")
                said = rank.wait_to_say(r"op \d+ failed at ([0-9.]+)")
                told.append(float(said.group(1)) - killed)
        print("told of the death after (ms): " + " ".join(f"{1000 * t:.0f}" for t in told))
        self.assertLess(max(told), harness.AT_ONCE)
        self.end_steady_job(self.start_steady_job(3, NOBODY, SLUICE_JOB=7))
        self.end_steady_job(other_job)

    def test_of_one_that_lacks_some_of_its_peers(self):
        """A rank that comes again can join."""
        first, dead = self.joiner(0, 3), self.joiner(1, 3)
        first.wait_to_say("the join has waited 3 s for rank 2 to join on this host")
        dead.send(signal.SIGKILL)
        dead.wait()
        ranks = [first, self.joiner(1, 3), self.joiner(2, 3)]
        for rank in ranks:
            rank.wait_to_say("under way")


class Silence(HostTest):
    def test_a_stopped_rank_is_waited_for(self):
        job = self.start_steady_job(3, NOBODY, elements=100_000)
        job[1].send(signal.SIGSTOP)
        job[0].wait_to_say("they have waited 3 s for rank 1")
        job[1].send(signal.SIGCONT)
        self.end_steady_job(job)

    def test_until_the_time_of_the_op_is_over(self):
        job = self.start_steady_job(3, NOBODY, elements=100_000, SLUICE_OP_TIMEOUT_MS=1000,
                                    SLUICE_JOB=7)
        job[1].send(signal.SIGSTOP)
        for rank in (job[0], job[2]):
            self.ends_with(rank, 3, "op timed out", "it waited for rank 1")
        job[1].send(signal.SIGCONT)
        self.ends_with(job[1], 3, "job 7: ")


class Refusals(HostTest):
    def test_ranks_that_disagree(self):
        for variable, first, second, field in (("SLUICE_WORLD_SIZE", 3, 4, "world size"),
                                               ("SLUICE_BLOCK_ELEMENTS", 128, 64, "block elements"),
                                               ("SLUICE_MTU", 1500, 9000, "packet payload")):
            with self.subTest(field=field):
                ranks = [self.joiner(0, 3, **{variable: first}),
                         self.joiner(1, 3, **{variable: second})]
                for rank in ranks:
                    self.fails(rank, "formation failed", "ranks disagree about the job: rank",
                               field)

    def test_one_rank_twice(self):
        first = self.joiner(0)
        first.wait_to_say("the join has waited 3 s for rank 1 to join on this host")
        self.fails(self.joiner(0), "formation failed", "two processes joined as rank 0")
        self.assertTrue(first.is_running())

    def test_one_rank_twice_while_the_job_runs(self):
        job = self.start_steady_job(2, NOBODY, SLUICE_JOB=7)
        self.fails(self.joiner(1, SLUICE_JOB=7), "formation failed",
                   "two processes joined as rank 1")
        self.end_steady_job(job)

    def test_ranks_that_never_come(self):
        for settings in ({}, {"SLUICE_HOST": "elsewhere"}):
            ranks = [self.joiner(0, 3, SLUICE_JOIN_TIMEOUT_MS=500),
                     self.joiner(1, 3, SLUICE_JOIN_TIMEOUT_MS=500, **settings)]
            self.fails(ranks[0], "formation failed", "rank (1, )?2 did not join on this host "
                       "within 500 ms; ranks of several hosts need aggregators: set .*"
                       "SLUICE_AGGREGATORS")
            ranks[1].wait()

    def test_the_launcher_has_started_ranks_elsewhere(self):
        self.fails(self.joiner(0, SLUICE_LOCAL_WORLD_SIZE=1), "invalid argument",
                   "1 of 2 ranks are on this host", "need aggregators: set .*SLUICE_AGGREGATORS")

    def test_secrets(self):
        for of_first, of_second, saying in (
                ("of-sixteen-letters", "", "(has|and this rank has) no(ne| secret)"),
                ("of-sixteen-letters", "others,-as-many!", "did not prove the job's secret")):
            ranks = [self.joiner(0, SLUICE_SECRET=of_first),
                     self.joiner(1, SLUICE_SECRET=of_second)]
            harness.wait_until(lambda ranks=ranks: not all(r.is_running() for r in ranks),
                               "one is refused")
            ended, = [rank for rank in ranks if not rank.is_running()][:1]
            self.ends_with(ended, 3, "not authenticated", saying)
            for rank in ranks:
                rank.kill()

    def test_the_level_is_off(self):
        self.fails(self.joiner(0, SLUICE_HOST_LEVEL=0), "invalid argument",
                   "SLUICE_AGGREGATORS.* is empty, and host_level .SLUICE_HOST_LEVEL. is off")

    def test_a_name_that_is_none(self):
        self.fails(self.joiner(0, SLUICE_HOST="../up"), "invalid argument",
                   "SLUICE_HOST must be a name of 1..32 letters")

    @unittest.skipUnless(os.geteuid() == 0, harness.NEEDS_ROOT)
    def test_a_directory_that_cannot_be_trusted(self):
        place = f"/dev/shm/sluice-{os.geteuid()}"
        for preparation, saying in (
                (f"mkdir -m 755 {place}", "mode 0700 expected"),
                (f"mkdir -m 700 {place}; chown 65534 {place}",
                 "it belongs to user 65534; 0 expected"),
                (f"touch {place}", "it is no directory; remove it"),
                ("mount -o remount,ro /dev/shm", "Read-only file system")):
            with self.subTest(saying=saying):
                rank = self.in_namespace("mount -t tmpfs tmpfs /dev/shm; " + preparation)
                self.fails(rank, "unavailable", f"'{place}', where the ranks of this host find "
                           "each other: .*" + saying)


if __name__ == "__main__":
    harness.main()
