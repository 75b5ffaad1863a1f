"""`import sluice`: NumPy arrays and scipy.sparse matrices through real aggregators, errors as
exceptions, signals, the end of the interpreter."""
import collections
import json
import os
import signal

import harness

RANK = os.path.join(harness.ROOT, "tests", "system", "python", "rank.py")
SPARSE_RANK = os.path.join(harness.ROOT, "tests", "system", "python", "sparse_rank.py")


class Python(harness.SystemTest):
    def start_python(self, rank, ranks, daemon, *words, python=harness.PYTHON_WITH_NUMPY,
                     **settings):
        settings = {**harness.python_environment(), **settings}
        return self.start_rank(rank, ranks, daemon, python, "-B", *words, **settings)

    def start_python_job(self, ranks, daemon, *words, program=RANK, **named):
        return [self.start_python(r, ranks, daemon, program, *words, **named)
                for r in range(ranks)]

    def test_alone(self):
        self.all_end_well(self.start_python_job(1, self.start_daemon(), "all_at_once"))

    def test_three_ranks(self):
        self.all_end_well(self.start_python_job(3, self.start_shards(2), "all_at_once"))

    def test_sparse_sums(self):
        self.all_end_well(self.start_python_job(3, self.start_shards(2), "pairs",
                                                program=SPARSE_RANK))

    def test_sparse_sums_alone(self):
        self.all_end_well(self.start_python_job(1, self.start_daemon(), "pairs",
                                                program=SPARSE_RANK))

    def test_sparse_sums_of_matrices(self):
        """Matrices of Debian's python3-scipy."""
        self.all_end_well(self.start_python_job(3, self.start_shards(2), "matrices",
                                                program=SPARSE_RANK, python=harness.DEBIAN_PYTHON))

    def test_settings_of_jobs_are_kept(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(2, daemon, "settings_of_jobs_are_kept"))

    def test_moves_between_different_dtypes(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(2, daemon, "dtypes_that_differ"))

    def test_garbage_in_a_cycle(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(1, daemon, "garbage_in_a_cycle"))

    def test_closing_beside_calls(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(1, daemon, "closed_beside_calls"))

    def test_memory_that_is_freed_too_early(self):
        """Ranks that sum among themselves: their job ends, and no other one."""
        host = f"test-{os.getpid()}"
        other_job = self.start_steady_job(2, "", SLUICE_HOST=host)
        job = self.start_python_job(8, "", "memory_is_freed_too_early", SLUICE_HOST=host,
                                    SLUICE_JOB=7, FREED=os.path.join(self.place, "freed"))
        for rank in job:
            self.ends_with(rank, 1, "sluice.Error.*job 7: rank 7 is lost: its tensor cannot be "
                           "read or written any more: did it free the memory")
        self.end_steady_job(other_job)

    def test_contexts_are_shared(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(2, daemon, "contexts_are_shared"))

    def events(self, name, ends=True):
        with open(self.directory(name), encoding="utf-8") as file:
            return json.loads(file.read() + ("" if ends else "]"))

    def test_timeline(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(2, daemon, "timeline",
                                                SLUICE_TIMELINE=self.directory("trace.json")))
        for rank in range(2):
            events = self.events(f"trace.{rank}.json")
            self.assertEqual({event["pid"] for event in events}, {rank})
            spans = collections.Counter((e["ph"], e["name"]) for e in events if e["ph"] in "be")
            message = ("send", "recv")[rank]
            for name, times in {"all_reduce": 1, message: 1, "barrier": 1, "queued": 3,
                                "running": 3}.items():
                for phase in "be":
                    self.assertEqual(spans.pop((phase, name)), times, (phase, name))
            self.assertFalse(spans)
            facts = {e["name"]: e["args"] for e in events if e["ph"] == "b"}
            self.assertLessEqual({"elements": 1000, "bytes": 4000, "dtype": "float", "tag": 9,
                                  "reduction": "sum"}.items(), facts["all_reduce"].items())
            self.assertLessEqual({"bytes": 3, "peer": 1 - rank}.items(), facts[message].items())
            self.assertIn("joined", [e["name"] for e in events if e["ph"] == "i"])
            again = self.events(f"trace.json.{rank}.again")
            self.assertIn("broadcast", [event["name"] for event in again])
            self.assertNotIn("barrier", [event["name"] for event in again])

    def test_timeline_tells_of_a_recovery_and_of_failed_ops(self):
        daemon = self.start_daemon()
        job = [self.start_python(r, 2, daemon, RANK, "timeline_until_killed",
                                 SLUICE_TIMELINE=self.directory("trace.%r")) for r in range(2)]
        for rank in job:
            rank.wait_to_say("joined")
        daemon = self.restart(daemon)
        daemon.wait_to_say("resumed with its progress")
        job[0].kill()
        self.ends_with(job[1], 1, "Error: .*rank 0")
        self.assertTrue(self.events("trace.0", ends=False))  # although it was killed
        events = self.events("trace.1")
        instants = [event["name"] for event in events if event["ph"] == "i"]
        for name in ("recovery begins", "recovered", "op failed", "job failed"):
            self.assertIn(name, instants)
        failed = next(event["args"] for event in events if event["name"] == "op failed")
        self.assertEqual((failed["call"], failed["rank"]), ("all_reduce", 0))

    def test_timeline_that_cannot_be_written(self):
        daemon = self.start_daemon()
        rank = self.start_python(0, 1, daemon, RANK, "timeline",
                                 SLUICE_TIMELINE="/no/such/trace.json")
        self.ends_with(rank, 1, "Error: the timeline '/no/such/trace.0.json' cannot be written:"
                       " No such file or directory")
        os.symlink("/dev/full", self.directory("full.0"))
        rank = self.start_python(0, 1, daemon, RANK, "timeline_of_a_full_disk",
                                 SLUICE_TIMELINE=self.directory("full"))
        self.ends_with(rank, 1, "Error: the timeline .* cannot be written: No space left on device")
        self.assertIn("; ops go on", rank.err)

    def test_memory_is_freed_and_private(self):
        """Without any Context."""
        for scenario in ("memory_goes_with_its_last_view", "memory_is_private_after_fork"):
            self.all_end_well([self.start_python(0, 1, "vhost:/no/such", RANK, scenario)])

    def test_metrics_change_no_signals(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(1, daemon, "metrics_change_no_signals"))

    def test_compressors(self):
        """Without any Context."""
        self.all_end_well([self.start_python(0, 1, "vhost:/no/such", RANK, "compressed")])

    def test_control_c_ends_a_wait(self):
        self.is_interrupted("interrupted",
                            r"job \d+: ops pending: 1; they have waited 3 s for rank 1")

    def test_control_c_ends_a_split(self):
        self.is_interrupted("interrupted_split")

    def is_interrupted(self, scenario, after="waiting"):
        daemon = self.start_daemon()
        first = self.start_python(0, 2, daemon, RANK, scenario)
        other = self.start_python(1, 2, daemon, RANK, scenario)
        first.wait_to_say("waiting")
        first.wait_to_say(after)
        first.send(signal.SIGINT)
        first.wait_to_say("interrupted")
        self.assertEqual(first.wait(), 0)
        self.ends_with(other, 1, "Error: .*rank 0")

    def test_control_c_ends_a_join(self):
        """Interrupts a rank that would wait for ten minutes. It can join again."""
        daemon = self.start_daemon("--formation-timeout-ms", "600000")
        first = self.start_python(0, 2, daemon, RANK, "interrupted_join")
        first.wait_to_say("joining")
        daemon.wait_to_say("has waited 3 s for rank 1 to join")
        first.send(signal.SIGINT)
        first.wait_to_say("interrupted")
        other = self.start_python(1, 2, daemon, RANK, "joins_and_leaves")
        self.all_end_well([first, other])

    def test_an_exception_of_one_rank_is_told(self):
        """The daemon's log has it, too."""
        daemon = self.start_daemon()
        other, failing = self.start_python_job(2, daemon, "fails")
        self.assertEqual(other.wait(), 0, other.err)
        self.assertEqual(other.out, "told\n")
        self.ends_with(failing, 1, "ValueError: the program ends")
        daemon.wait_to_say("job 0: ended: rank 1 failed: an exception ended its program, or its use"
                           " of the job")

    def test_the_interpreter_ends_with_ops_in_flight(self):
        daemon = self.start_daemon()
        self.all_end_well(self.start_python_job(1, daemon, "ends_with_ops_in_flight"))
        job = [self.start_python(0, 2, daemon, RANK, "ends_with_ops_in_flight",
                                 SLUICE_LOG="error"),  # it may wait for long for the other
               self.start_python(1, 2, daemon, RANK, "awaits_the_other")]
        self.assertEqual(job[0].wait(), 0)
        self.assertIn("started", job[0].out)
        self.assertEqual(harness.errors_of(job[0]), "")
        self.ends_with(job[1], 1, "Error: ")

    def test_no_aggregator(self):
        rank = self.start_python(0, 1, "vhost:/no/such", RANK, "all_at_once")
        self.ends_with(rank, 1, "Error: .*'/no/such' is missing")

    def test_no_library(self):
        rank = self.start_python(0, 1, "vhost:/no/such", RANK, "all_at_once",
                                 SLUICE_LIBRARY="/no/such.so")
        self.ends_with(rank, 1, "ImportError: .*/no/such.so.*SLUICE_LIBRARY")

    def python_with(self, path, **modules):
        """PYTHONPATH of a Python that finds what `path` has, and these modules in place of its own;
        None: not at all, as in a fresh virtual environment."""
        place = self.directory("modules")
        os.makedirs(place)
        absent = [name for name, text in modules.items() if text is None]
        modules["sitecustomize"] = (
            "import sys\n"
            "class Without:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name in {absent}:\n"
            "            raise ModuleNotFoundError('not here', name=name)\n"
            "sys.meta_path.insert(0, Without())\n")
        for name, text in modules.items():
            if text is not None:
                with open(os.path.join(place, name + ".py"), "w", encoding="ascii") as file:
                    file.write(text)
        return os.pathsep.join([place, path])

    def import_fails(self, package, path, saying):
        rank = self.start_python(0, 1, "vhost:/no/such", "-c", f"import {package}", PYTHONPATH=path)
        self.ends_with(rank, 1, "ImportError: " + saying)

    def test_a_python_without_numpy(self):
        path = self.python_with(harness.python_environment()["PYTHONPATH"], numpy=None)
        self.import_fails("sluice", path, "sluice needs NumPy, which /.*python.* does not have")

    def test_a_python_without_pytorch(self):
        path = self.python_with(os.path.join(harness.ROOT, "bindings", "torch"), torch=None)
        self.import_fails("sluice_torch", path,
                          "sluice_torch needs PyTorch, which /.*python.* does not have")

    def test_a_backend_for_another_python(self):
        """The package in the sources has no library at all."""
        path = self.python_with(
            os.path.join(harness.ROOT, "bindings", "torch"),
            torch="import sys\n__version__ = '9.9'\n__path__ = []\n"
                  "distributed = sys.modules['torch.distributed'] = sys\n")
        self.import_fails("sluice_torch", path, "sluice_torch's backend cannot be loaded by "
                                                "/.*python.* with PyTorch 9.9: .*_backend")

    def test_first_program(self):
        path = os.path.join(harness.ROOT, "examples", "first_program.py")
        daemon = self.start_daemon()
        job = [self.start_python(r, 2, daemon, path) for r in range(2)]
        self.all_end_well(job)
        self.assertRegex(job[0].out, r"the ranks' sum is 3; this one sent \d+ bytes of 4000000")


if __name__ == "__main__":
    harness.main()
