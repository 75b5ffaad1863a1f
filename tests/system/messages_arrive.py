"""Messages between two ranks: aggregators may die meanwhile, and the other side may come late; a
rank that dies is named, and so is the reason if an aggregator refuses."""
import os
import signal

import harness

LONG = 600_000  # ms: a time-out that would fail the test if it were what ends a wait
SECRET = "a-secret-that-these-ranks-share"


class Messages(harness.SystemTest):
    def start_ring(self, ranks, daemon, **settings):
        return [self.start_ring_rank(r, ranks, daemon, **settings) for r in range(ranks)]

    def start_ring_rank(self, rank, ranks, daemon, *start_file, elements=20_000, **settings):
        stop = self.directory("stop")
        process = self.start_rank(rank, ranks, daemon, "steady_messages", stop, elements,
                                  *start_file, SLUICE_JOB=7, **settings)
        process.stop_file = stop
        return process

    def start_steady_ring(self, ranks, daemon, **settings):
        job = self.start_ring(ranks, daemon, **settings)
        for rank in job:
            rank.wait_to_say("under way")
        return job

    def test_a_dead_rank_is_named(self):
        daemon = self.start_daemon("--liveness-timeout-ms", LONG)
        job = self.start_steady_ring(4, daemon, SLUICE_AGGREGATOR_TIMEOUT_MS=LONG)
        dead = job.pop(2)
        dead.send(signal.SIGKILL)
        for rank in job:
            self.ends_with(rank, 3, "worker lost about rank 2: job 7: rank 2 is lost")
        self.ends_on_signal(daemon)

    def test_an_aggregator_is_killed_again_and_again(self):
        daemon = self.start_daemon()
        job = self.start_steady_ring(3, daemon, elements=300_000)
        for _ in range(4):
            daemon = self.restart(daemon)
            daemon.wait_to_say("resumed with its progress")
        daemon.wait_to_say(": formed, ")  # the job of the ring, which has made no progress
        self.end_steady_job(job)
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)
        self.assertEqual(self.counter(daemon, "jobs_left"), 1 + 6)

    def test_one_of_two_aggregators_is_killed(self):
        daemons = self.start_shards(2)
        job = self.start_steady_ring(2, daemons)
        for shard in (0, 1):
            daemons[shard] = self.restart(daemons[shard], "--shard", shard, "--shards", 2,
                                          name=f"a{shard}")
            daemons[shard].wait_to_say("resumed with its progress")
        self.end_steady_job(job)
        for daemon in daemons:
            self.ends_on_signal(daemon)
            self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)

    def test_on_a_bad_network(self):
        faults = "loss=0.02,duplicate=0.02,reorder=0.02"
        daemon = self.start_daemon("--faults", "seed=1," + faults)
        job = self.start_steady_ring(3, daemon, SLUICE_FAULTS="seed=2," + faults)
        self.end_steady_job(job)
        self.ends_on_signal(daemon)

    def test_the_other_side_comes_late(self):
        """It comes after the aggregator's formation time-out, which also bounds the ranks'
        start."""
        daemon = self.start_daemon("--formation-timeout-ms", 4000)
        start = self.directory("start")
        early = self.start_ring_rank(0, 2, daemon, SLUICE_LOG="debug")
        late = self.start_ring_rank(1, 2, daemon, start)
        early.wait_to_say("messages from rank 0 to rank 1 wait on")
        early.wait_to_say("messages from rank 1 to rank 0 wait on")
        with open(start, "w", encoding="ascii"):
            pass
        for rank in (early, late):
            rank.wait_to_say("under way")
        self.end_steady_job([early, late])
        self.ends_on_signal(daemon)

    def test_secrets(self):
        """A secret for all jobs also serves messages; a secret for this job only does not."""
        for number, (line, works) in enumerate((("*", True), ("7", False))):
            path = os.path.join(self.place, f"secret{number}")
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(f"{line} {SECRET}\n")
            daemon = self.start_daemon("--secret-file", path, "--authenticate-packets", "on",
                                       name=f"a{number}")
            job = self.start_ring(2, daemon, SLUICE_SECRET=SECRET)
            if works:
                for rank in job:
                    rank.wait_to_say("under way")
                self.end_steady_job(job)
            else:
                self.one_is_told(job, "not authenticated.*: job 7: .* did not prove the job's"
                                      " secret: .*; messages go by jobs .*'. SECRET'")
            self.ends_on_signal(daemon)

    def test_more_than_the_aggregator_serves(self):
        daemon = self.start_daemon("--max-jobs", 2)
        job = self.start_ring(2, daemon)
        self.one_is_told(job, "quota.*: job 7: .* limit of 2 jobs; messages from rank . to rank .")
        self.ends_on_signal(daemon)

    def one_is_told(self, job, saying):
        """At least one of them; the other may get the error that this one gave up."""
        self.assertEqual([rank.wait() for rank in job], [3] * len(job))
        self.assertRegex("".join(rank.err for rank in job), saying)


if __name__ == "__main__":
    harness.main()
