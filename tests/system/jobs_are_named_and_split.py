"""Jobs that have names, and the jobs that ranks derive by split and duplicate: what aggregators
require for them, and the errors if they refuse."""
import os
import re
import signal
import subprocess

import documents
import harness

SECRET = "a-secret-that-these-ranks-share"
NAME, ID = "bert-large", 108174750
TWINS = "job-23093", "job-158110"  # with the same id; to find these takes about 2^16 names
PARTS = "duplicates", "parts_outlive_the_whole", "parts_of_parts"


class Named(harness.SystemTest):
    def test_by_its_name_and_by_its_number(self):
        daemon = self.start_daemon()
        ranks = [self.start_joiner(0, 3, daemon, SLUICE_JOB=NAME),
                 self.start_joiner(1, 3, daemon, SLUICE_JOB=ID),
                 self.start_joiner(2, 3, daemon, SLUICE_JOB=NAME)]
        for rank in ranks:
            rank.wait_to_say("under way")
        daemon.wait_to_say(rf"job {NAME} \({ID}\): formed, 3 ranks")
        ranks[0].send(signal.SIGKILL)
        self.ends_with(ranks[1], 3, f"worker lost about rank 0: job {ID}: rank 0 is lost")
        self.ends_with(ranks[2], 3, rf"worker lost about rank 0: job {NAME} \({ID}\): rank 0")

    def test_the_id_as_documented(self):
        for command in documents.commands("docs/operators.md", "python3 -c"):
            told = subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.PIPE)
            self.assertEqual(int(told.stdout), ID)

    def test_names_of_one_id_meet(self):
        daemon = self.start_daemon()
        job = self.start_steady_job(2, daemon, SLUICE_JOB=TWINS[0])
        other = self.start_joiner(1, 2, daemon, SLUICE_JOB=TWINS[1])
        self.refuses(other, 3, "formation failed",
                     rf"job {TWINS[1]} \(\d+\): two processes joined as rank 1")
        self.end_steady_job(job)

    def test_with_a_secret_of_its_own(self):
        daemon = self.start_daemon("--secret-file", secret_file(self, NAME))
        job = self.start_steady_job(2, daemon, SLUICE_JOB=NAME, SLUICE_SECRET=SECRET)
        self.end_steady_job(job)
        rank = self.start_joiner(0, 2, daemon, SLUICE_JOB=NAME)
        self.refuses(rank, 3, "not authenticated", rf"job {NAME} \({ID}\): rank 0 did not prove")


class Split(harness.SystemTest):
    """Sums in job 1."""

    def test_with_a_secret_of_all_jobs(self):
        daemon = self.start_daemon("--secret-file", secret_file(self, "*"),
                                   "--authenticate-packets", "on")
        self.all_end_well(self.start_job(3, daemon, "api", *PARTS, SLUICE_SECRET=SECRET))
        self.ends_on_signal(daemon)
        self.assertEqual(self.counter(daemon, "jobs_aborted"), 0)

    def test_with_a_secret_of_the_whole_alone(self):
        daemon = self.start_daemon("--secret-file", secret_file(self, "1"))
        self.one_is_told(self.start_job(2, daemon, "api", "duplicates", SLUICE_SECRET=SECRET),
                         r"job \d+ \(duplicate of job 1\): rank \d did not prove the job's secret: "
                         r".* the aggregator has none for this job .*;"
                         r" parts of a job are jobs with ids .* \('\* SECRET'\)")

    def test_more_than_the_aggregator_serves(self):
        daemon = self.start_daemon("--max-jobs", 1)
        self.one_is_told(self.start_job(2, daemon, "api", "duplicates"),
                         r"job \d+ \(duplicate of job 1\): .* limit of 1 jobs; each part of a job"
                         " counts as a job there")

    def test_operators_learn_the_id(self):
        daemon = self.start_daemon()
        job = self.start_job(2, daemon, "api", "duplicates", SLUICE_LOG="info")
        self.all_end_well(job)
        id_of = re.search(r"job (\d+) \(duplicate of job 1\): joined as rank 0 of 2", job[0].err)
        daemon.wait_to_say(rf"job 1/duplicate \({id_of[1]}\): all 2 ranks have left")


    def test_on_a_bad_network(self):
        faults = "loss=0.02,duplicate=0.02,reorder=0.02"
        daemon = self.start_daemon("--faults", "seed=1," + faults)
        job = self.start_job(3, daemon, "api", *PARTS, SLUICE_FAULTS="seed=2," + faults)
        self.all_end_well(job)

    def test_an_aggregator_is_killed_meanwhile(self):
        daemon = self.start_daemon()
        job = self.start_job(3, daemon, "api", *PARTS, SLUICE_LOG="info")
        job[0].wait_to_say(r"duplicate of job 1\): joined")
        self.restart(daemon)
        self.all_end_well(job)

    def one_is_told(self, job, saying):
        """At least one of them; the other may get the error that this one cannot join."""
        self.assertEqual([rank.wait() for rank in job], [1] * len(job))
        self.assertRegex("".join(rank.err for rank in job), saying)


def secret_file(test, job):
    path = os.path.join(test.place, "secrets")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"{job} {SECRET}\n")
    return path


if __name__ == "__main__":
    harness.main()
