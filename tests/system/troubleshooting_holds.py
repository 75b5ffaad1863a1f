"""docs/troubleshooting.md has the messages of daemons and ranks. Each row names a case of a system
test, and the output of its processes must have the row's texts. A case that has passed in the same
run of scripts/test is not run again: its processes' output was recorded."""
import functools
import importlib
import os
import re
import unittest

import harness
import recorded

PAGE = "docs/troubleshooting.md"
STANDS_FOR_MORE = re.compile(r"\b(?:SETTING|DEVICE|IFACE|FILE|DIR|[NTVRJA])\b|\.\.\.")
CODE = re.compile(r"`([^`]+)`")


def rows():
    """Line, texts, and `file Class.case` of each row."""
    with open(os.path.join(harness.ROOT, PAGE), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 4 and (cells[0].startswith("`") or CODE.search(cells[3])):
                yield number, CODE.findall(cells[0]), cells[3].strip("`")


def pattern_of(text):
    """A pattern: the variable parts of the text match anything within a line."""
    kept = STANDS_FOR_MORE.split(text)
    return ".*?".join(map(re.escape, kept))


@functools.cache
def run_case(name):
    """The output of all processes of the case, why it was skipped, and how it failed."""
    file, case = name.split()
    said = recorded.said_by(file, case)
    if said is not None:
        return said, "", ""
    owner, _, method = case.partition(".")
    test = getattr(importlib.import_module(file), owner)(method)
    result = unittest.TestResult()
    test.run(result)
    problems = "".join(text for _, text in result.failures + result.errors)
    skipped = "; ".join(why for _, why in result.skipped)
    return test.said, skipped, problems


class Page(harness.SystemTest):
    def test_every_row_is_what_is_said(self):
        found = list(rows())
        self.assertGreater(len(found), 60)
        for number, texts, name in found:
            with self.subTest(line=number, case=name):
                self.assertTrue(texts, "no text in the first column")
                said, skipped, problems = run_case(name)
                self.assertFalse(problems, problems)
                if skipped:
                    print(f"skipped: {PAGE}:{number}: {name}: {skipped}")
                    continue
                for text in texts:
                    self.assertRegex(said, pattern_of(text))


class Settings(harness.SystemTest):
    """Mistakes of an operator that no other test makes."""

    def test_a_misspelt_variable(self):
        """A variable of the daemon or of the library: each refuses both, as one environment may
        serve both."""
        program = harness.program("sluice-aggregator")
        daemon = self.start("daemon", program, "--vhost-dir", self.directory(),
                            SLUICE_AGGREGATOR_STREEMS=4)
        self.refuses(daemon, 2, "the environment has SLUICE_AGGREGATOR_STREEMS: "
                                r"did you mean SLUICE_AGGREGATOR_STREAMS\?")
        for command in (["first-program"], ["first-program-c"], ["sluice-perf"],
                        ["sluice-pktgen", "--in-memory", "--duration", "0.1"]):
            with self.subTest(command[0]):
                rank = self.start("rank", harness.program(command[0]), *command[1:],
                                  SLUICE_WORLDSIZE=2)
                self.refuses(rank, 1, "the environment has SLUICE_WORLDSIZE: "
                                      r"did you mean SLUICE_WORLD_SIZE\?")
        for command in (program, harness.program("sluice-perf"), harness.program("sluice-pktgen")):
            told = self.start("help", command, "--help", SLUICE_WORLDSIZE=2)
            self.assertEqual(told.wait(), 0, told.report())

    def test_a_variable_that_nothing_reads(self):
        """It may be the user's own: each process says so once."""
        said = "the environment has SLUICE_HOSTS_OF_MINE, which Sluice does not read"
        daemon = self.start_daemon(SLUICE_HOSTS_OF_MINE=4)
        rank = self.start_rank(0, 1, daemon, "first-program", SLUICE_HOSTS_OF_MINE=4)
        self.assertEqual(rank.wait(), 0, rank.report())
        self.ends_on_signal(daemon)
        for process in (daemon, rank):
            self.assertEqual(process.err.count(said), 1, process.report())

    def test_half_of_what_a_launcher_sets(self):
        rank = self.start("rank", harness.program("first-program"), WORLD_SIZE=2,
                          SLUICE_AGGREGATORS=self.start_daemon().address)
        self.assertEqual(rank.wait(), 0, rank.report())
        self.assertIn("the environment has WORLD_SIZE, but not RANK: neither is taken", rank.err)

    def test_a_secret_that_others_can_read(self):
        path = os.path.join(self.place, "secrets")
        with open(path, "w", encoding="ascii") as file:
            file.write("* a-secret-of-all-the-ranks\n")
        os.chmod(path, 0o644)
        daemon = self.start("daemon", harness.program("sluice-aggregator"), "--vhost-dir",
                            self.directory(), "--secret-file", path)
        self.refuses(daemon, 2, "has mode 0644, .* it must have 0600")


class Programs(harness.SystemTest):
    """Mistakes of a program."""

    START = ("import os, sys, time, numpy, sluice\n"
             "context = sluice.Context()\n"
             "job = context.join()\n"
             "def add(count): return job.all_reduce(numpy.ones(count, numpy.float32))\n"
             "add(10).wait()\n")

    def run_job(self, daemon, *lines):
        """On two ranks, in Python, after a first sum."""
        return self.start_job(2, daemon, harness.PYTHON_WITH_NUMPY, "-B", "-c",
                              self.START + "\n".join(lines), GO=self.directory("go"),
                              **harness.python_environment())

    def go(self):
        with open(self.directory("go"), "w", encoding="ascii"):
            pass

    def test_ranks_that_call_different_collectives(self):
        daemon = self.start_daemon()
        for rank in self.run_job(daemon, "add(20 + job.rank).wait()"):
            self.ends_with(rank, 1, "ranks call different collectives: .*element count 2[01]")
        daemon.wait_to_say("job 0: ended: ranks call different collectives")
        self.ends_on_signal(daemon)

    def test_a_rank_that_leaves_too_early(self):
        daemon = self.start_daemon()
        job = self.run_job(daemon, "if job.rank == 0: add(10).wait()", "job.close()")
        self.ends_with(job[0], 1, "rank 1 left the job while other ranks still call collectives")
        self.assertEqual(job[1].wait(), 0)
        self.ends_on_signal(daemon)

    def test_a_rank_that_an_exception_ends(self):
        daemon = self.start_daemon()
        job = self.run_job(daemon, "if job.rank == 0: add(10).wait()", "raise ValueError('a bug')")
        self.ends_with(job[0], 1, "rank 1 failed: an exception ended its program, or its use of the"
                       " job")
        self.ends_with(job[1], 1, "ValueError: a bug")
        self.ends_on_signal(daemon)

    def test_a_rank_that_ends_with_ops_pending(self):
        daemon = self.start_daemon()
        job = self.run_job(daemon, "if job.rank == 1:", "    add(10)", "    sys.exit()",
                           "while not os.path.exists(os.environ['GO']): time.sleep(0.01)",
                           "add(10).wait()")
        self.assertEqual(job[1].wait(), 0)
        daemon.wait_to_say("job 0: ended: ")
        self.go()
        self.ends_with(job[0], 1, "rank 1 ended the job, or left it with ops pending")
        self.ends_on_signal(daemon)


if __name__ == "__main__":
    harness.main()
