"""PyTorch over Sluice: every collective, models trained as over Gloo, and the errors of the others
when a rank is missing, dies, or calls something else."""
import glob
import os
import re
import signal

import harness
import imported

# For programs that count bytes: on a busy machine an answer may be late, and nothing is lost.
NOTHING_TWICE = {"SLUICE_RETRANSMIT_TIMEOUT_MIN_US": 10_000_000}
PROGRAMS = os.path.join(harness.ROOT, "tests", "system", "torch")
TORCH = imported.Python(harness.DEBIAN_PYTHON, "torch", read_later=("CASE", "FAKE_", "STORE"))


def package():
    """Where the extension was built; None if it was not."""
    place = harness.torch_package()
    return place if glob.glob(os.path.join(place, "sluice_torch", "_backend*.so")) else None


class Torch(harness.SystemTest):
    """A rank is a fork of a process that has imported PyTorch, unless a test says otherwise:
    `self.afresh`. Then ranks have other addresses, and other hashes of strings, as users' have."""
    afresh = False

    def setUp(self):
        if package() is None:
            self.skipTest("bindings/torch is not built: no Python with PyTorch and its headers")

    def environment(self, **settings):
        """Gloo, for comparison, uses the loopback interface."""
        return super().environment(**{"PYTHONPATH": package(), "STORE": self.directory("store"),
                                      "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1,
                                      "PYTHONWARNINGS": "ignore", **settings})

    def spawn(self, command, environment, *files_and_more):
        program = not self.afresh and TORCH.spawn(command, environment, *files_and_more)
        return program or super().spawn(command, environment, *files_and_more)

    def start_program(self, rank, ranks, daemon, program, *scenarios, **settings):
        return self.start_rank(rank, ranks, daemon, harness.DEBIAN_PYTHON, "-B",
                               os.path.join(PROGRAMS, program), *scenarios, **settings)

    def start_programs(self, ranks, daemon, *words, **settings):
        return [self.start_program(r, ranks, daemon, *words, **settings) for r in range(ranks)]


class Collectives(Torch):
    def test_alone(self):
        self.all_end_well(self.start_programs(1, self.start_daemon(), "collectives.py"))

    def test_three_ranks(self):
        self.afresh = True
        self.all_end_well(self.start_programs(3, self.start_shards(2), "collectives.py"))


if not harness.torch_version().startswith("1."):
    class PyTorch2(Torch):
        """Features that only PyTorch 2 has. With 1.13 there is nothing to skip."""

        def run_scenarios(self, ranks, scenarios):
            self.all_end_well(self.start_programs(ranks, self.start_daemon(), "pytorch_2.py",
                                                  scenarios))

        def test_what_it_expects_of_a_backend(self):
            self.run_scenarios(3, "collectives")

        def test_training(self):
            self.run_scenarios(2, "training")

        def test_abort_and_shutdown(self):
            self.run_scenarios(2, "ends")


class AnyOrder(Torch):
    def test_random_programs(self):
        self.all_end_well(self.start_programs(3, self.start_shards(2), "any_order.py", *range(20)))


class Modes(Torch):
    def test_every_collective_in_every_mode(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "modes.py"))


class OnADevice(Torch):
    """The CPU's tensors pass through pinned memory, by a GPU's kernels: see torch_device."""
    def environment(self, **settings):
        place = os.path.join(harness.build, "tests", "system", "torch_device")
        return super().environment(**{"PYTHONPATH": place, "FAKE_DELAY_US": 50, **settings})

    def test_every_collective(self):
        self.all_end_well(self.start_programs(3, self.start_shards(2), "collectives.py"))

    def test_random_programs(self):
        self.all_end_well(self.start_programs(3, self.start_shards(2), "any_order.py", *range(8)))

    def test_many_chunks(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "device.py"))

    def test_on_one_host_without_an_aggregator(self):
        host = f"test-{os.getpid()}"
        for ranks, words in ((3, ("collectives.py",)), (3, ("any_order.py", *range(4))),
                             (2, ("device.py",))):
            self.all_end_well(self.start_programs(ranks, "", *words, SLUICE_HOST=host))

    def test_failure_after_wait(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "device.py",
                                              CASE="late_failure"))

    def test_memory_that_cannot_be_pinned(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "device.py", CASE="unpinned",
                                              FAKE_PINNED_MOST=4 << 20))

    def test_graph(self):
        self.all_end_well(self.start_programs(1, self.start_daemon(), "device.py", CASE="captured",
                                              FAKE_CAPTURE=1))


class BesideOtherBindings(Torch):
    def test_numpy(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "beside_numpy.py",
                                              **harness.python_environment()))


class Profiles(Torch):
    def test_names_and_shapes(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "profiled.py"))


class Contrib(Torch):
    """contrib/torch: no package has it, so its tests are beside it. They share what those of
    sluice_torch share."""
    def start_contrib(self, ranks, daemon, program, *scenarios):
        program = os.path.join(harness.TORCH_CONTRIB, "tests", program)
        paths = os.pathsep.join((package(), harness.TORCH_CONTRIB, PROGRAMS))
        return self.start_programs(ranks, daemon, program, *scenarios, PYTHONPATH=paths)

    def test_ef21(self):
        self.all_end_well(self.start_contrib(
            2, self.start_daemon(), "follows_ef21.py", "nothing_left_out", "it_is_as_published",
            "it_reaches_gradients_that_stay", "it_forgets_bad_numbers", "sparse_gradients",
            "what_it_cannot_take"))

    def test_ef21_of_three_ranks(self):
        self.all_end_well(self.start_contrib(
            3, self.start_shards(2), "follows_ef21.py", "it_is_as_published"))

    def test_delayed_adam(self):
        self.all_end_well(self.start_contrib(
            2, self.start_daemon(), "delays_adam.py", "with_every_gradient_it_is_adam",
            "late_gradients_count_for_all_their_steps", "it_goes_on_from_its_state",
            "bad_numbers_stay_where_they_are", "all_ranks_train_alike", "arguments_are_checked"))


class Training(Torch):
    def test_two_ranks(self):
        self.all_end_well(self.start_programs(
            2, self.start_daemon(), "training.py", "dense", "unused_parameters", "sparse_embedding",
            "sharded", "made_again", "beside_a_message"))

    def test_three_ranks(self):
        self.all_end_well(self.start_programs(3, self.start_shards(2), "training.py", "dense",
                                              "sparse_embedding", "sharded"))

    def test_communication_hooks(self):
        self.all_end_well(self.start_programs(
            2, self.start_daemon(), "hooks.py", "nothing_left_out", "what_is_left_out_comes_later",
            "random_blocks_are_the_same_on_all_ranks", "fewer_bytes", "sparse_gradients",
            "an_overflow_passes", "library_and_tensors_agree", "bad_numbers_are_sent_at_once",
            "blocks_that_adam_moves_most_travel", "options_are_checked", "recorded"))

    def test_hooks_of_pytorch(self):
        self.all_end_well(self.start_programs(2, self.start_daemon(), "torchs_hooks.py"))

    def test_communication_hooks_of_three_ranks(self):
        self.all_end_well(self.start_programs(
            3, self.start_shards(2), "hooks.py", "what_is_left_out_comes_later",
            "what_is_rounded_comes_later"))

    def test_ok_top_k(self):
        self.all_end_well(self.start_programs(
            3, self.start_shards(2), "ok_top_k.py", "nothing_left_out", "nothing_is_lost",
            "about_k_are_sent_and_delivered", "a_model_learns", "what_it_cannot_take",
            "a_late_rank", "a_failed_step_leaves_all_out"))

    def test_zero_one_adam(self):
        self.all_end_well(self.start_programs(
            2, self.start_daemon(), "zero_one_adam.py", "warming_up_it_is_adam",
            "ranks_step_alone_and_meet", "nothing_is_lost", "few_bytes_are_sent", "variances_meet",
            "it_goes_on_from_its_state", "a_model_learns", "arguments_are_checked",
            **NOTHING_TWICE))

    def test_tensors_in_shared_memory(self):
        self.afresh = True
        self.all_end_well(self.start_programs(
            2, self.start_daemon(), "memory.py", "scoped", "nothing_is_left", "buckets",
            "data_loader", "strided_and_sparse", SLUICE_HOST_LEVEL=1))

    def test_tensors_in_a_scope_where_ranks_share_none(self):
        self.all_end_well(self.start_programs(
            2, self.start_daemon(), "memory.py", "ordinary_buckets", "scoped",
            SLUICE_HOST_LEVEL=0))

    def test_torchrun_as_documented(self):
        """The commands of docs/torch.md, unchanged."""
        if not harness.torchrun_works():
            self.skipTest(harness.NO_TORCHRUN)
        program = self.documented("python")[0]
        serve, train = self.documented("bash")[:2]
        with open(os.path.join(self.place, "train.py"), "w", encoding="ascii") as file:
            file.write(program)
        programs = os.path.dirname(harness.program("sluice-aggregator"))
        path = programs + os.pathsep + os.environ["PATH"]
        self.start("aggregator", "bash", "-c", serve, PATH=path).wait_to_say(r"\bready\b")
        launcher = self.start("torchrun", "bash", "-c", f"cd {self.place} && {train}", PATH=path)
        self.all_end_well([launcher])
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4 ends with a loss of 0.", launcher.out)

    @staticmethod
    def documented(language):
        """The examples in that language."""
        with open(os.path.join(harness.ROOT, "docs/torch.md"), encoding="utf-8") as file:
            return re.findall(rf"```{language}\n(.*?)```", file.read(), re.DOTALL)


class Failures(Torch):
    def start_failure(self, ranks, *words, **settings):
        """All ranks except the last one, which stops at some point."""
        daemon = self.start_daemon()
        *others, last = self.start_programs(ranks, daemon, "failures.py", *words, **settings)
        last.wait_to_say("stopped")
        return others, last

    def told(self, ranks):
        self.all_end_well(ranks)
        for rank in ranks:
            self.assertEqual((rank.out, harness.errors_of(rank)), ("told\n", ""))

    def test_missing_rank_is_named(self):
        others, _ = self.start_failure(3, "missing_rank")
        self.told(others)

    def test_killed_rank_is_named(self):
        others, last = self.start_failure(3, "killed_rank")
        last.kill()
        self.told(others)

    def test_an_exception_of_one_rank_is_told(self):
        *others, last = self.start_programs(2, self.start_daemon(), "failures.py", "raises")
        self.told(others)
        self.ends_with(last, 1, "ValueError: the program ends")

    def test_dropped_group(self):
        others, _ = self.start_failure(2, "dropped_group")
        self.told(others)

    def test_mismatch_is_told(self):
        self.told(self.start_programs(2, self.start_daemon(), "failures.py", "mismatch",
                                      SLUICE_MEMORY_MIB=128))  # for more than eight groups

    def test_what_ends_a_group(self):
        self.told(self.start_programs(2, self.start_daemon(), "failures.py", "what_ends_a_group"))

    def test_misspelt_settings(self):
        self.told(self.start_programs(1, self.start_daemon(), "failures.py", "misspelt_settings"))

    def test_a_rank_with_a_misspelt_setting_is_named(self):
        self.told(self.start_programs(3, self.start_daemon(), "failures.py", "one_cannot_join"))

    def test_groups_meet_by_their_members(self):
        self.told(self.start_programs(4, self.start_daemon(), "failures.py",
                                      "disjoint_groups_made_by_their_members"))

    def test_groups_in_another_order_are_told(self):
        self.told(self.start_programs(3, self.start_daemon(), "failures.py",
                                      "groups_in_another_order"))

    def test_groups_that_wait_for_others_are_told(self):
        *waiting, third, last = self.start_programs(4, self.start_daemon(), "failures.py",
                                                    "groups_that_wait_for_others")
        for rank in waiting:
            self.ends_with(rank, 1, "RuntimeError: sluice: some ranks make a group of ranks"
                           " 0, 1, 2, others one of ranks 0, 1, 3 at the same time")
        self.told([third, last])

    def test_a_rank_without_a_port_is_named(self):
        job = self.start_programs(3, self.start_daemon(), "failures.py", "one_cannot_open_its_port")
        self.all_end_well(job)  # DPDK of one of them prints its usage
        for rank in job:
            self.assertIn("told\n", rank.out)

    def test_a_rank_with_another_secret_is_named(self):
        secret = "a-secret-that-these-ranks-share"
        daemon = self.start_daemon(SLUICE_AGGREGATOR_SECRET=secret)
        self.told(self.start_programs(3, daemon, "failures.py", "one_has_another_secret",
                                      SLUICE_SECRET=secret, SLUICE_JOIN_TIMEOUT_MS=3000))

    def test_the_interpreter_ends_with_works_in_flight(self):
        others, _ = self.start_failure(2, "ends_with_works_in_flight")
        self.all_end_well(others)
        self.assertEqual((others[0].out, harness.errors_of(others[0])), ("ending\n", ""))

    def test_no_aggregator(self):
        rank = self.start_program(0, 1, "vhost:/no/such", "failures.py", "joins")
        self.ends_with(rank, 1, "RuntimeError: sluice: .*'/no/such' is missing")

    def test_rank_0_tells_of_the_aggregators(self):
        daemon = self.start_daemon()
        self.all_end_well([self.start_program(0, 2, daemon, "training.py", "sharded"),
                           self.start_program(1, 2, "", "training.py", "sharded")])

    def test_no_aggregator_is_named(self):
        rank = self.start_program(0, 1, "", "failures.py", "joins", SLUICE_HOST_LEVEL=0)
        self.ends_with(rank, 1, "ValueError: sluice: .*SLUICE_AGGREGATORS")

    def test_one_host_needs_no_aggregator(self):
        host = f"test-{os.getpid()}"
        self.all_end_well([self.start_program(rank, 2, "", "training.py", "sharded",
                                              SLUICE_HOST=host) for rank in range(2)])

    def test_control_c_ends_a_wait_for_ranks_that_do_not_come(self):
        rank = self.start_program(0, 2, self.start_daemon(), "failures.py", "interrupted")
        self.is_interrupted([rank], "for rank 1 to make the same group")

    def test_control_c_ends_a_join(self):
        """The error of ranks that meet, but join at different aggregators."""
        job = [self.start_program(rank, 2, self.start_daemon("--formation-timeout-ms", "600000",
                                                             name=f"a{rank}"),
                                  "failures.py", "interrupted") for rank in range(2)]
        self.is_interrupted(job, r"for rank \d to join")

    def is_interrupted(self, ranks, waits):
        for rank in ranks:
            rank.wait_to_say("the join has waited 3 s " + waits)
            rank.send(signal.SIGINT)
        self.told(ranks)

    def test_ranks_that_do_not_come(self):
        rank = self.start_program(0, 3, self.start_daemon(), "failures.py", "joins")
        self.ends_with(rank, 1, "RuntimeError: sluice: .* 2000 ms; missing: rank 1, rank 2$")


if __name__ == "__main__":
    harness.main()
