// One rank of the public API's tests: `api SCENARIO...` or `api all`, once per rank. It prints
// nothing if all is right; otherwise it says what is wrong and ends with 1.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/system/api/check.hpp"
#include "tests/system/api/guest.hpp"

namespace sluice::api_test {

Error error_of(ErrorCode code, const std::string& what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    check(error.code() == code,
          what + ": '" + error.what() + "' is of another kind: " + std::string(name(error.code())));
    return error;
  }
  throw Failure(what + ": no error");
}

/// "rank 1 has FIELD VALUE, rank 0 has VALUE": the rank that came first is named first.
void check_says_both(const Error& error, const std::string& field, const std::string& of_first,
                     const std::string& of_other) {
  check_says(error, "has " + field);
  std::string says = error.what();
  says.erase(says.find("has " + field) + 4, field.size() + 1);
  check_says(Error(error.code(), says), "rank 0 has " + of_first);
  check_says(Error(error.code(), says), "has " + of_other);
}

namespace {

struct Scenario {
  const char* name;
  void (*run)(const Setting&);
  std::uint16_t least_ranks;
  bool on_request = false;  ///< "all" does not include it, as it takes long with sanitizers
};

constexpr Scenario kScenarios[] = {
    {"every_type_and_reduction", every_type_and_reduction, 1},
    {"averages_of_integers_are_exact", averages_of_integers_are_exact, 1},
    {"no_reduction_is_negative_zero", no_reduction_is_negative_zero, 1},
    {"every_size", every_size, 1},
    {"tensors_that_daemons_may_read", tensors_that_daemons_may_read, 1},
    {"reduces_to_every_root", reduces_to_every_root, 1},
    {"reduces_and_scatters", reduces_and_scatters, 1},
    {"sums_go_to_those_who_want_them", sums_go_to_those_who_want_them, 2},
    {"beyond_2_to_the_31_elements", beyond_2_to_the_31_elements, 1, true},
    {"bitmap_spares_the_search", bitmap_spares_the_search, 1},
    {"blocks_are_as_large_as_the_op_says", blocks_are_as_large_as_the_op_says, 1},
    {"sums_of_few_bits", sums_of_few_bits, 1},
    {"statistics_count_blocks", statistics_count_blocks, 1},
    {"broadcasts_from_every_root", broadcasts_from_every_root, 1},
    {"broadcasts_what_is_read_only", broadcasts_what_is_read_only, 1},
    {"gathers_of_equal_parts", gathers_of_equal_parts, 1},
    {"gathers_of_any_parts", gathers_of_any_parts, 1},
    {"scatters_from_every_root", scatters_from_every_root, 1},
    {"parts_for_every_rank", parts_for_every_rank, 1},
    {"moves_are_checked", moves_are_checked, 1},
    {"moves_that_ranks_disagree_about", moves_that_ranks_disagree_about, 2},
    {"messages_around_a_ring", messages_around_a_ring, 2},
    {"messages_between_all_at_once", messages_between_all_at_once, 2},
    {"messages_keep_their_order", messages_keep_their_order, 2},
    {"messages_wait_for_no_collective", messages_wait_for_no_collective, 2},
    {"messages_of_what_is_read_only", messages_of_what_is_read_only, 2},
    {"messages_are_checked", messages_are_checked, 1},
    {"messages_that_the_sides_disagree_about", messages_that_the_sides_disagree_about, 2},
    {"messages_await_the_other_side", messages_await_the_other_side, 2},
    {"messages_to_one_that_left", messages_to_one_that_left, 2},
    {"left_with_messages_pending", left_with_messages_pending, 2},
    {"messages_that_time_out", messages_that_time_out, 2},
    {"sparse_sums", sparse_sums, 1},
    {"encoded_sparse_sums", encoded_sparse_sums, 1},
    {"sparse_sums_of_any_order", sparse_sums_of_any_order, 1},
    {"sparse_sums_beside_dense_ones", sparse_sums_beside_dense_ones, 1},
    {"sparse_sums_refused", sparse_sums_refused, 1},
    {"global_top_k_loses_nothing", global_top_k_loses_nothing, 1},
    {"global_top_k_delivers_about_k", global_top_k_delivers_about_k, 1},
    {"global_top_k_of_special_input", global_top_k_of_special_input, 1},
    {"global_top_k_that_fails", global_top_k_that_fails, 1},
    {"global_top_k_that_ranks_disagree_about", global_top_k_that_ranks_disagree_about, 2},
    {"many_ops_in_flight", many_ops_in_flight, 1},
    {"several_jobs_in_several_threads", several_jobs_in_several_threads, 1},
    {"one_job_from_several_threads", one_job_from_several_threads, 1},
    {"wait_for_is_bounded", wait_for_is_bounded, 1},
    {"barrier_waits_for_all", barrier_waits_for_all, 2},
    {"completions_in_the_order_of_ends", completions_in_the_order_of_ends, 2},
    {"completions_wake_a_thread", completions_wake_a_thread, 1},
    {"completions_by_a_descriptor", completions_by_a_descriptor, 1},
    {"joined_and_left_again_and_again", joined_and_left_again_and_again, 1},
    {"rejoined_beside_the_old", rejoined_beside_the_old, 1},
    {"after_leaving", after_leaving, 1},
    {"a_rank_that_left_is_named", a_rank_that_left_is_named, 2},
    {"destroyed_by_an_exception", destroyed_by_an_exception, 2},
    {"destroyed_with_ops_pending", destroyed_with_ops_pending, 2},
    {"aborted_by_a_thread", aborted_by_a_thread, 2},
    {"ops_that_time_out", ops_that_time_out, 2},
    {"left_during_an_op", left_during_an_op, 2},
    {"splits_into_parts", splits_into_parts, 1},
    {"splits_that_some_take_no_part_in", splits_that_some_take_no_part_in, 1},
    {"duplicates", duplicates, 1},
    {"parts_outlive_the_whole", parts_outlive_the_whole, 1},
    {"parts_of_parts", parts_of_parts, 1},
    {"splits_that_ranks_disagree_about", splits_that_ranks_disagree_about, 2},
    {"forked_children_are_refused", forked_children_are_refused, 1},
    {"mismatches_name_ranks_and_values", mismatches_name_ranks_and_values, 2},
    {"invalid_arguments", invalid_arguments, 1},
};

bool is_chosen(const std::vector<std::string>& names, const Scenario& scenario) {
  for (const std::string& name : names)
    if ((name == "all" && !scenario.on_request) || name == scenario.name) return true;
  return false;
}

/// If hosts with several ranks were started, each rank gets the number of ranks on its host.
Setting setting_of(Context& context, const JobOptions& job, bool has_aggregators) {
  if (job.local_world_size == 0)
    return {.context = context, .job = job, .has_aggregators = has_aggregators};
  std::int32_t ranks = job.local_world_size;  // of the largest host
  ReduceOptions largest;
  largest.reduction = Reduction::kMax;
  Communicator(context, job).all_reduce(std::span(&ranks, 1), largest).wait();
  return {.context = context,
          .job = job,
          .has_aggregators = has_aggregators && (job.world_size == 1 || ranks < job.world_size),
          .has_hosts = has_aggregators && ranks > 1 && ranks < job.world_size};
}

int run(const std::vector<std::string>& names) {
  const JobOptions job = JobOptions::from_environment();
  const char* doing = "good_guest";
  try {
    good_guest();
    const ContextOptions options = ContextOptions::from_environment();
    Context context(options);
    const Setting setting = setting_of(context, job, !options.aggregators.empty());
    int ran = 0;
    for (const Scenario& scenario : kScenarios) {
      if (!is_chosen(names, scenario) || job.world_size < scenario.least_ranks) continue;
      doing = scenario.name;
      scenario.run(setting);
      ++ran;
    }
    doing = "the choice";
    check(ran > 0, "no scenario of that name, or too few ranks for it");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %u: %s: %s\n", job.rank, doing, error.what());
    return 1;
  }
}

}  // namespace
}  // namespace sluice::api_test

int main(int argc, char** argv) {
  return sluice::api_test::run({argv + 1, argv + argc});
}
