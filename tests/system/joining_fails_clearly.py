"""Who cannot join is told why in one line, and the jobs that run already stay right."""
import harness


class Joining(harness.SystemTest):
    def setUp(self):
        self.daemon = self.start_daemon("--formation-timeout-ms", "600000")
        self.other_job = self.start_steady_job(2, self.daemon)

    def tearDown(self):
        if all(rank.is_running() for rank in self.other_job):
            self.end_steady_job(self.other_job)
            self.ends_on_signal(self.daemon)
        else:
            self.fail("the job that ran at the same time has ended")

    def fails(self, rank, code, *sayings):
        self.refuses(rank, 3, f"^rank \\d+: {code}", *sayings)

    def test_two_processes_with_one_rank_while_the_job_forms(self):
        rivals = [self.start_joiner(0, 2, self.daemon) for _ in range(2)]
        harness.wait_until(lambda: not all(rival.is_running() for rival in rivals),
                           "one of two processes with the same rank is refused")
        rivals.sort(key=harness.Process.is_running)
        self.fails(rivals[0], "formation failed", "two processes joined as rank 0",
                   "the first is alive and keeps the number")
        other = self.start_joiner(1, 2, self.daemon)
        rivals[1].wait_to_say("under way")
        other.wait_to_say("under way")

    def test_two_processes_with_one_rank_while_the_job_runs(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_JOB=77)
        second = self.start_joiner(1, 2, self.daemon, SLUICE_JOB=77)
        self.fails(second, "formation failed", "two processes joined as rank 1")
        self.end_steady_job(job)

    def test_ranks_that_disagree(self):
        for variable, first, second, field in (
                ("SLUICE_WORLD_SIZE", 3, 4, "world size"),
                ("SLUICE_BLOCK_ELEMENTS", 128, 64, "block elements"),
                ("SLUICE_STREAMS", 8, 16, "number of streams"),
                ("SLUICE_HISTORY", 4, 8, "history depth"),
        ):
            with self.subTest(field=field):
                ranks = [self.start_joiner(0, 3, self.daemon, **{variable: first}),
                         self.start_joiner(1, 3, self.daemon, **{variable: second})]
                for rank in ranks:
                    self.fails(rank, "formation failed", "ranks disagree about the job",
                               f"rank 0 has {field} {first}|rank 1 has {field} {second}",
                               f"rank 0 has .*{first}", f"rank 1 has .*{second}")

    def test_a_rank_beyond_the_running_jobs_world(self):
        job = self.start_steady_job(2, self.daemon, SLUICE_JOB=77)
        self.fails(self.start_joiner(2, 3, self.daemon, SLUICE_JOB=77), "formation failed",
                   "rank 0 has world size 2, rank 2 has 3")
        self.end_steady_job(job)

    def test_more_than_the_aggregator_accepts(self):
        self.fails(self.start_joiner(0, 1, self.daemon, SLUICE_STREAMS=1000, SLUICE_HISTORY=64),
                   "quota", "does not accept memory in MiB \\d+; its limit is \\d+")

    def test_a_rank_that_never_comes(self):
        ranks = [self.start_joiner(r, 3, self.daemon, SLUICE_JOIN_TIMEOUT_MS=6000) for r in (0, 2)]
        for rank in ranks:
            self.fails(rank, "formation failed", "rank 1 to join")

    def test_no_such_directory(self):
        self.fails(self.start_joiner(0, 1, "vhost:/no/such/directory"), "unavailable",
                   "vhost directory '/no/such/directory' is missing")

    def test_an_aggregator_of_another_place(self):
        """The one address given is that of shard 0 of 1, but the daemon is shard 1 of 2."""
        daemon = self.start_daemon("--shard", "1", "--shards", "2", name="a1")
        self.fails(self.start_joiner(0, 1, daemon), "quota",
                   "does not accept shard 0; its limit is 1")

    def test_too_many_jobs(self):
        daemon = self.start_daemon("--max-jobs", "1", name="a1")
        job = self.start_steady_job(1, daemon)
        self.fails(self.start_joiner(0, 1, daemon), "quota", "its limit of 1 jobs")
        self.end_steady_job(job)


class FormationTimeout(harness.SystemTest):
    def test_the_aggregator_names_the_absent(self):
        daemon = self.start_daemon("--formation-timeout-ms", "5000")
        ranks = [self.start_joiner(r, 4, daemon) for r in (0, 3)]
        for rank in ranks:
            self.refuses(rank, 3, "formation failed about rank 1",
                         "2 of the job's ranks never joined, the first is rank 1")


if __name__ == "__main__":
    harness.main()
