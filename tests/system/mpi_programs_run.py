"""libsluice-mpi.so, preloaded: unmodified MPI programs in C and Fortran get the same results, bit
for bit, with their collectives taken over or not, and the report lists those that were."""
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness
import mpirun
from checkout import mpi_library

SOURCES = os.path.join(harness.ROOT, "tests", "system", "mpi")
COMPILERS = {".c": ["mpicc", "-std=gnu17", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"],
             ".f90": ["mpifort", "-O1", "-Wall", "-Werror"]}
# Its vector instructions clamp sums of 8 and 16 bits, which MPI's other implementations wrap, as
# Sluice does.
PLAIN_SUMS = {"op": "^avx"}
# Shared memory; and TCP, for ranks that another mpirun has started.
LOCAL = {**mpirun.TCP, "btl": "vader,tcp,self"}
# Libraries write to stderr of the ranks themselves, as mpirun may lose output.
SAID_AT_ONCE = {"orte_base_help_aggregate": "0"}
ROW = re.compile(r"^  (MPI_\w+) +(\d+) +(\d+) +(\d+)  (.*)$", re.MULTILINE)
PASSES = "sluice-mpi: everything passes through to MPI: "
PAGE = os.path.join(harness.ROOT, "docs", "mpi.md")
# "| -0.0, +0.0, +0.0 | MIN, MAX | -0.0 or +0.0 | +0.0 |"
SPECIAL_VALUES = re.compile(r"^\| (\S+), (\S+), (\S+) \| ([A-Z, ]+) \| (.*) \| (.*) \|$",
                            re.MULTILINE)


def page():
    with open(PAGE, encoding="utf-8") as file:
        return file.read()


@functools.cache
def programs():
    """A directory for what is compiled, removed at the end."""
    directory = tempfile.mkdtemp(prefix="st-mpi-")
    unittest.addModuleCleanup(shutil.rmtree, directory)
    return directory


@functools.cache
def compiled(source):
    name, suffix = os.path.splitext(source)
    program = os.path.join(programs(), name)
    subprocess.run([*COMPILERS[suffix], os.path.join(SOURCES, source), "-o", program],
                   check=True, cwd=programs())
    return program


def by_rank(groups):
    """A program that runs a command in its rank's environment. mpirun accepts several commands for
    that, but Open MPI 5.0.7 crashes with them."""
    script, end = "", 0
    for ranks, environment in groups:
        end += ranks
        words = shlex.join(f"{name}={value}" for name, value in environment.items())
        script += f'[ $OMPI_COMM_WORLD_RANK -ge {end} ] || exec env {words} "$@"\n'
    return ["sh", "-c", script, "sh"]


class MpiPrograms(harness.SystemTest):
    def setUp(self):
        if not os.path.exists(mpi_library()):
            self.skipTest("libsluice-mpi.so is not built: it needs libopenmpi-dev")

    def mpirun(self, ranks, *command, options=(), **settings):
        parameters = PLAIN_SUMS | LOCAL | SAID_AT_ONCE
        return self.start("mpirun", *mpirun.command(self.place, parameters, *options, "-n", ranks,
                                                    *command), **settings)

    def preloaded(self, daemons, source, *words, ranks=4, options=(), **settings):
        """`daemons` is as start_rank's `daemon`."""
        return self.mpirun(ranks, compiled(source), *words, options=[*options, *self.preload()],
                           **self.settings(daemons, settings))

    def preloaded_by_rank(self, daemons, source, *groups, **settings):
        """Starts `groups`, from rank 0 on: numbers of ranks, with their variables."""
        groups = [(ranks, {"LD_PRELOAD": mpi_library()} | own) for ranks, own in groups]
        return self.mpirun(sum(ranks for ranks, _ in groups), *by_rank(groups), compiled(source),
                           **self.settings(daemons, settings))

    @staticmethod
    def settings(daemons, settings):
        daemons = daemons if isinstance(daemons, list) else [daemons]
        named = ",".join(getattr(d, "address", d) for d in daemons)
        return {"SLUICE_AGGREGATORS": named, "SLUICE_MPI_MIN_BYTES": 1000,
                "SLUICE_AGGREGATOR_TIMEOUT_MS": harness.TIME_LIMIT * 1000, **settings}

    @staticmethod
    def preload():
        return ["-x", f"LD_PRELOAD={mpi_library()}"]

    def rows(self, job):
        """From the report: what was taken over of each call, and what passed through."""
        return {call: (int(taken), passed) for call, taken, _, _, passed in ROW.findall(job.err)}

    def gives_what_mpi_gives(self, source, *words, ranks=4, shards=1, options=(), **settings):
        """The rows of its report."""
        alone = self.mpirun(ranks, compiled(source), *words, options=options)
        job = self.preloaded(self.start_shards(shards), source, *words, ranks=ranks,
                             options=options, **settings)
        self.all_end_well([job])
        self.ends_by_itself(alone)
        self.assertRegex(job.out, r"^(digest \w{16}|all is right)$")
        self.assertEqual(job.out, alone.out)
        return self.rows(job)

    def ends_by_itself(self, alone):
        """Without Sluice. A rank of Open MPI 4.1 sometimes crashes as it ends, when its output is
        complete."""
        if alone.wait() != 128 + signal.SIGSEGV:
            self.all_end_well([alone])
            self.assertEqual(alone.err, "")

    def passes_through(self, job, reason):
        """With right results, and one line with the reason."""
        self.all_end_well([job])
        self.assertRegex(job.out, r"^digest \w{16}$")
        self.assertRegex(job.err, rf"\A{PASSES}{reason}\n\Z")

    # ---- what is taken over -----------------------------------------------------------------

    def test_reductions(self):
        # 6 types have 4 operations, 13 have 7, 1 has 3, and 7 unsigned ones have 5 that are taken
        # over; each twice. What passes are MIN and MAX of 6 of these, and what Sluice has not.
        self.assertEqual(self.gives_what_mpi_gives("reductions.c"),
                         {"MPI_Allreduce": (306, "2 small, 27 datatype or operation"),
                          "MPI_Reduce": (306, "24 datatype or operation")})

    def test_negative_zero_and_nan_are_as_documented(self):
        rows = [(operation, row) for row in SPECIAL_VALUES.findall(page())
                for operation in row[3].split(", ")]
        self.assertEqual({operation for operation, _ in rows}, {"SUM", "PROD", "MIN", "MAX"})
        words = [word for operation, row in rows for word in (operation, *row[:3])]
        alone = self.mpirun(3, compiled("special_values.c"), *words)
        job = self.preloaded(self.start_daemon(), "special_values.c", *words, ranks=3)
        self.all_end_well([job])
        self.ends_by_itself(alone)
        self.assertEqual(self.rows(job), {"MPI_Allreduce": (len(rows), "0")})
        for process, column in ((alone, 4), (job, 5)):
            for said, (operation, row) in zip(process.out.splitlines(), rows, strict=True):
                self.assertLessEqual(set(said.split(" or ")), set(row[column].split(" or ")),
                                     (process.name, operation, row))

    def test_moves(self):
        self.assertEqual(self.gives_what_mpi_gives("moves.c"),
                         {"MPI_Bcast": (29, "4 small"), "MPI_Allgather": (8, "0")})

    def test_communicators(self):
        self.assertEqual(self.gives_what_mpi_gives("communicators.c", shards=2),
                         {"MPI_Allreduce": (38, "4 communicator"),
                          "MPI_Barrier": (0, "22 not asked for")})

    def test_barriers_where_they_are_asked_for(self):
        rows = self.gives_what_mpi_gives("communicators.c", SLUICE_MPI_BARRIER="on")
        self.assertEqual(rows["MPI_Barrier"], (19, "2 communicator, 1 no job"))

    def test_ranks_that_are_started_later(self):
        self.assertEqual(self.gives_what_mpi_gives("spawns.c", ranks=2),
                         {"MPI_Allreduce": (1, "1 communicator")})

    def test_only_the_first_world_reports_unless_all_are_asked_for(self):
        daemon = self.start_daemon()
        for report, heads in (("on", ["of 2"]), ("all", ["of 2", "of 2, spawned"])):
            job = self.preloaded(daemon, "spawns.c", ranks=2, SLUICE_MPI_REPORT=report)
            self.all_end_well([job])
            said = re.findall("^sluice-mpi: rank 0 (.*)$", job.err, re.MULTILINE)
            self.assertEqual(sorted(said), heads)

    def test_requests_and_threads(self):
        self.assertEqual(self.gives_what_mpi_gives("requests.c", "multiple"),
                         {"MPI_Allreduce": (61, "0"), "MPI_Iallreduce": (8, "1 no job")})

    def test_requests_need_thread_multiple(self):
        self.assertEqual(self.gives_what_mpi_gives("requests.c", "serialized"),
                         {"MPI_Iallreduce": (0, "7 threads")})

    def test_communicator_freed_before_its_request_is_done(self):
        job = self.preloaded(self.start_daemon(), "requests.c", "freed-early")
        self.all_end_well([job])
        self.assertEqual(self.rows(job), {"MPI_Allreduce": (1, "0"), "MPI_Iallreduce": (1, "0")})

    def test_messages_are_served_meanwhile(self):
        by_pieces = mpirun.parameters({"btl_vader_single_copy_mechanism": "none"})
        self.assertEqual(self.gives_what_mpi_gives("messages.c", options=by_pieces),
                         {"MPI_Allreduce": (3, "0")})

    def check_fortran(self, source):
        if shutil.which("gfortran") is None:
            self.skipTest("needs gfortran")
        self.assertEqual(self.gives_what_mpi_gives(source), {
            "MPI_Allreduce": (2, "1 small"), "MPI_Iallreduce": (1, "0"), "MPI_Bcast": (1, "0"),
            "MPI_Reduce": (2, "0"), "MPI_Allgather": (2, "0"),
            "MPI_Barrier": (0, "1 not asked for")})

    def test_program_that_uses_sluice_itself(self):
        job = self.preloaded(self.start_daemon(), "beside_sluice.c", ranks=2)
        self.all_end_well([job])
        self.assertEqual(self.rows(job)["MPI_Allreduce"], (2, "0"))

    def test_memory_of_mpi_is_shared(self):
        """MPI_Alloc_mem returns shared memory, unless ranks may not sum there; it is freed as it
        was allocated."""
        daemon = self.start_daemon()
        for setting, place in ((1, "shared"), (0, "ordinary")):
            job = self.preloaded(daemon, "memory.c", place, SLUICE_HOST_LEVEL=setting)
            self.all_end_well([job])
            self.assertRegex(job.out, r"^digest \w{16}$")
            self.assertEqual(self.rows(job)["MPI_Allreduce"], (1, "0"))

    def test_fortran_with_use_mpi(self):
        self.check_fortran("names.f90")

    def test_fortran_with_use_mpi_f08(self):
        self.check_fortran("names_f08.f90")

    # ---- the report and the settings --------------------------------------------------------

    def test_documented_commands(self):
        """Those that the page begins with, with a program of one sum."""
        commands = re.search("^```\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)[1]
        os.symlink(compiled("one_sum.c"), os.path.join(self.place, "program"))
        with open(os.path.join(self.place, "sluice.pc"), "w", encoding="ascii") as file:
            file.write(f"libdir={os.path.dirname(mpi_library())}\nName: sluice\nVersion: 0\n"
                       "Description: where this build has its libraries\n")
        tools = os.path.dirname(harness.program("sluice-aggregator"))
        mpi = {"rmaps_base_oversubscribe": "1", "orte_tmpdir_base": self.place} | LOCAL
        shell = self.start(
            "shell", "bash", "-ec", f"cd {self.place}\n{commands}\nkill $!; wait $!",
            PKG_CONFIG_PATH=self.place, PATH=f"{tools}:{os.environ['PATH']}", TMPDIR=self.place,
            SLUICE_MPI_MIN_BYTES=1000, OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,
            PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",  # as Open MPI 5 reads it
            **{f"OMPI_MCA_{name}": value for name, value in mpi.items()})
        self.all_end_well([shell])
        self.assertRegex(shell.out, r"^digest \w{16}$")
        self.assertEqual(self.rows(shell), {"MPI_Allreduce": (1, "0")})

    def test_report_counts_bytes(self):
        job = self.preloaded(self.start_daemon(), "one_sum.c")
        self.all_end_well([job])
        (call, taken, tensor, sent, passed), = ROW.findall(job.err)
        self.assertEqual((call, taken, tensor, passed), ("MPI_Allreduce", "1", "20000", "0"))
        self.assertTrue(10_000 < int(sent) < 30_000, sent)  # a third of it is zero

    def test_report_names_the_setting_that_small_calls_are_below(self):
        job = self.preloaded(self.start_daemon(), "one_sum.c", SLUICE_MPI_MIN_BYTES=20001)
        self.all_end_well([job])
        self.assertEqual(self.rows(job), {"MPI_Allreduce": (0, "1 small")})
        self.assertIn("\n  small: fewer bytes than SLUICE_MPI_MIN_BYTES=20001\n", job.err)

    def test_report_names_the_setting_that_barriers_wait_for(self):
        job = self.preloaded(self.start_daemon(), "one_barrier.c")
        self.all_end_well([job])
        self.assertEqual(self.rows(job), {"MPI_Barrier": (0, "1 not asked for")})
        self.assertIn("\n  not asked for: SLUICE_MPI_BARRIER=on takes barriers over\n", job.err)

    def test_report_names_what_sluice_has_not(self):
        job = self.preloaded(self.start_daemon(), "reductions.c")
        self.all_end_well([job])
        lacks = re.search(r"  datatype or operation: (.*)\n", job.err)[1].split(", ")
        self.assertEqual(sum(int(entry.split()[0]) for entry in lacks), 27 + 24)
        unsigned = ["UNSIGNED_SHORT", "UINT16_T", "UNSIGNED", "UINT32_T",
                    "UNSIGNED_LONG_LONG", "UINT64_T"]
        self.assertEqual(sorted(entry.split(" ", 1)[1] for entry in lacks), sorted(
            ["MPI_LAND of MPI_INT", "MPI_MINLOC of MPI_2INT",
             "user-defined operation of MPI_DOUBLE",
             *(f"MPI_{op} of MPI_{name}" for op in ("MIN", "MAX") for name in unsigned)]))

    def test_report_may_be_off(self):
        job = self.preloaded(self.start_daemon(), "one_sum.c", SLUICE_MPI_REPORT="off")
        self.all_end_well([job])
        self.assertEqual(harness.errors_of(job), "")

    def test_least_size_is_that_of_rank_0(self):
        few = {"SLUICE_MPI_MIN_BYTES": 20000}
        many = {"SLUICE_MPI_MIN_BYTES": 1000000}
        daemon = self.start_daemon()
        for first, others, row in ((few, many, (1, "0")), (many, few, (0, "1 small"))):
            job = self.preloaded_by_rank(daemon, "one_sum.c", (1, first), (3, others))
            self.all_end_well([job])
            self.assertEqual(self.rows(job), {"MPI_Allreduce": row})

    def test_barriers_are_taken_over_if_rank_0_says_so(self):
        asks = {"SLUICE_MPI_BARRIER": "on"}
        daemon = self.start_daemon()
        for first, others, row in ((asks, {}, (1, "0")), ({}, asks, (0, "1 not asked for"))):
            job = self.preloaded_by_rank(daemon, "one_barrier.c", (1, first), (3, others))
            self.all_end_well([job])
            self.assertEqual(self.rows(job), {"MPI_Barrier": row})

    def test_only_names_of_mpi_are_exported(self):
        lines = subprocess.run(["nm", "-D", "--defined-only", mpi_library()], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.splitlines()
        names = [line.split()[2] for line in lines]
        self.assertEqual(len(names), 34)
        self.assertEqual([n for n in names if not re.match(r"MPI_|mpi_\w+_$", n)], [])

    # ---- when ranks cannot ------------------------------------------------------------------

    def test_no_aggregators_are_named(self):
        """One host needs none."""
        host = {"SLUICE_HOST": f"test-{os.getpid()}"}
        job = self.preloaded("", "one_sum.c", **host)
        self.all_end_well([job])
        self.assertEqual(self.rows(job)["MPI_Allreduce"][0], 1)
        job = self.mpirun(4, "env", "OMPI_COMM_WORLD_LOCAL_SIZE=3", compiled("one_sum.c"),
                          options=self.preload(), **self.settings("", host))
        self.passes_through(job, "rank 0: SLUICE_AGGREGATORS is not set, and the ranks are on "
                                 "several hosts")

    def test_one_rank_has_a_wrong_setting(self):
        job = self.preloaded_by_rank("vhost:/no/such", "one_sum.c",
                                     (2, {}), (2, {"SLUICE_MTU": 3}))
        self.passes_through(job, "rank 2: .*SLUICE_MTU.*")

    def test_one_rank_has_not_the_library(self):
        job = self.preloaded_by_rank("vhost:/no/such", "one_sum.c", (3, {}),
                                     (1, {"LD_PRELOAD": ""}), SLUICE_JOIN_TIMEOUT_MS=1000)
        self.passes_through(job, "rank 3 has not loaded .*")

    def test_one_rank_finds_no_aggregator(self):
        daemon = self.start_daemon()
        job = self.preloaded_by_rank(daemon, "one_sum.c", (3, {}),
                                     (1, {"SLUICE_AGGREGATORS": "vhost:/no/such"}))
        self.all_end_well([job])
        self.assertEqual(self.rows(job), {"MPI_Allreduce": (0, "1 refused")})
        said = re.findall("pass through to MPI.*", job.err)
        self.assertEqual(len(said), 1, job.err)
        self.assertRegex(job.err, "(?m)^sluice-mpi: calls on MPI_COMM_WORLD, of 4 ranks, pass "
                                  "through to MPI, as rank 3 cannot join: .*/no/such")

    def test_aggregator_takes_no_more_jobs(self):
        job = self.preloaded(self.start_daemon("--max-jobs", 1), "communicators.c")
        self.all_end_well([job])
        taken, passed = self.rows(job)["MPI_Allreduce"]
        self.assertEqual((taken, passed), (4, "4 communicator, 34 refused"))
        speakers = re.findall(r"through to MPI, as rank (\d) cannot join: .* 1 jobs", job.err)
        self.assertEqual(len(speakers), len(set(speakers)), job.err)  # each logs it once
        self.assertIn("0", speakers)

    # ---- errors -----------------------------------------------------------------------------

    def run_until_the_aggregator_dies(self, *how):
        daemon = self.start_daemon(name=how[-1])
        job = self.preloaded(daemon, "until_an_error.c", *how, ranks=3,
                             SLUICE_AGGREGATOR_TIMEOUT_MS=1000)
        for rank in range(3):
            job.wait_to_say(f"rank {rank} is under way")
        daemon.send(signal.SIGKILL)
        return job

    def test_errors_are_returned(self):
        for kind in ("blocking", "request"):
            job = self.run_until_the_aggregator_dies("returned", kind)
            self.all_end_well([job])
            for rank in range(3):
                self.assertRegex(job.out,
                                 f"rank {rank}: an error .* declared failed", kind)

    def test_errors_are_fatal(self):
        # The last output of ranks goes through mpirun. That of Open MPI 4.1 sometimes fails itself,
        # if all ranks write at once: it dies, or cannot read their messages. It logs that for
        # itself, as the process 0 of the job 0.
        mpirun_fails = re.compile(r"orte_rml_oob_send_buffer_nb|\[\[\d+,0\],0\] ORTE_ERROR_LOG")
        for kind in ("blocking", "request"):
            for _ in range(5):
                job = self.run_until_the_aggregator_dies("fatal", kind)
                self.assertNotEqual(job.wait(), 0, kind)
                if not mpirun_fails.search(job.err):
                    break
            self.assertRegex(job.err, r"\*\*\* sluice: job .* declared failed", kind)
            self.assertIn("MPI_ERRORS_ARE_FATAL", job.err, kind)

    def test_program_without_mpi_finalize(self):
        job = self.preloaded(self.start_daemon(), "not_finalized.c")
        job.wait()
        for rank in range(4):
            self.assertIn(f"rank {rank} is done", job.out)
        self.assertNotIn("exited on signal", job.err)
        self.assertIn('without calling "finalize"', job.err)


if __name__ == "__main__":
    harness.main()
