// What the scenarios share: checks that end the program, and their setting.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <sluice/sluice.hpp>

namespace sluice::api_test {

/// Thrown by a check; main() prints it with the rank and exits with 1.
class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool right, const std::string& what) {
  if (!right) throw Failure(what);
}

/// The Error that `call` throws, which must have this code.
Error error_of(ErrorCode code, const std::string& what, const std::function<void()>& call);

inline void check_says(const Error& error, std::string_view text) {
  check(std::string_view(error.what()).find(text) != std::string_view::npos,
        "'" + std::string(error.what()) + "' does not say '" + std::string(text) + "'");
}

/// For ranks that disagree: the values of rank 0 and of another rank.
void check_says_both(const Error& error, const std::string& field, const std::string& of_first,
                     const std::string& of_other);

/// That a sum of all ranks is right.
void check_sum(Communicator& job, const std::string& what);

/// This process's place among the ranks, and its context.
struct Setting {
  Context& context;
  JobOptions job;               ///< rank and world size; scenarios choose the job's id
  bool has_aggregators = true;  ///< some ranks sum through them; otherwise all sum among themselves

  /// Some ranks of a host sum among themselves, and hosts sum through aggregators. Then an op's
  /// statistics are those of what the rank carries for its host.
  bool has_hosts = false;

  Communicator join(std::uint32_t id) const {
    JobOptions options = job;
    options.job = id;
    return Communicator(context, options);
  }
};

// arithmetic.cpp
void every_type_and_reduction(const Setting& setting);
void averages_of_integers_are_exact(const Setting& setting);
void no_reduction_is_negative_zero(const Setting& setting);
void every_size(const Setting& setting);
void tensors_that_daemons_may_read(const Setting& setting);
void reduces_to_every_root(const Setting& setting);
void reduces_and_scatters(const Setting& setting);
void sums_go_to_those_who_want_them(const Setting& setting);
void beyond_2_to_the_31_elements(const Setting& setting);
void bitmap_spares_the_search(const Setting& setting);
void blocks_are_as_large_as_the_op_says(const Setting& setting);
void sums_of_few_bits(const Setting& setting);
void statistics_count_blocks(const Setting& setting);

// moves.cpp
void broadcasts_from_every_root(const Setting& setting);
void broadcasts_what_is_read_only(const Setting& setting);
void gathers_of_equal_parts(const Setting& setting);
void gathers_of_any_parts(const Setting& setting);
void scatters_from_every_root(const Setting& setting);
void parts_for_every_rank(const Setting& setting);
void moves_are_checked(const Setting& setting);
void moves_that_ranks_disagree_about(const Setting& setting);

// messages.cpp
void messages_around_a_ring(const Setting& setting);
void messages_between_all_at_once(const Setting& setting);
void messages_keep_their_order(const Setting& setting);
void messages_wait_for_no_collective(const Setting& setting);
void messages_of_what_is_read_only(const Setting& setting);
void messages_are_checked(const Setting& setting);
void messages_that_the_sides_disagree_about(const Setting& setting);
void messages_await_the_other_side(const Setting& setting);
void messages_to_one_that_left(const Setting& setting);
void left_with_messages_pending(const Setting& setting);
void messages_that_time_out(const Setting& setting);

// sparse.cpp
void sparse_sums(const Setting& setting);
void encoded_sparse_sums(const Setting& setting);
void sparse_sums_of_any_order(const Setting& setting);
void sparse_sums_beside_dense_ones(const Setting& setting);
void sparse_sums_refused(const Setting& setting);

// global_top_k.cpp
void global_top_k_loses_nothing(const Setting& setting);
void global_top_k_delivers_about_k(const Setting& setting);
void global_top_k_of_special_input(const Setting& setting);
void global_top_k_that_fails(const Setting& setting);
void global_top_k_that_ranks_disagree_about(const Setting& setting);

// concurrency.cpp
void many_ops_in_flight(const Setting& setting);
void several_jobs_in_several_threads(const Setting& setting);
void one_job_from_several_threads(const Setting& setting);
void wait_for_is_bounded(const Setting& setting);
void barrier_waits_for_all(const Setting& setting);
void completions_in_the_order_of_ends(const Setting& setting);
void completions_wake_a_thread(const Setting& setting);
void completions_by_a_descriptor(const Setting& setting);

// membership.cpp
void joined_and_left_again_and_again(const Setting& setting);
void rejoined_beside_the_old(const Setting& setting);
void after_leaving(const Setting& setting);
void a_rank_that_left_is_named(const Setting& setting);
void destroyed_by_an_exception(const Setting& setting);
void destroyed_with_ops_pending(const Setting& setting);
void aborted_by_a_thread(const Setting& setting);
void ops_that_time_out(const Setting& setting);
void left_during_an_op(const Setting& setting);

// splits.cpp
void splits_into_parts(const Setting& setting);
void splits_that_some_take_no_part_in(const Setting& setting);
void duplicates(const Setting& setting);
void parts_outlive_the_whole(const Setting& setting);
void parts_of_parts(const Setting& setting);
void splits_that_ranks_disagree_about(const Setting& setting);

// forking.cpp
void forked_children_are_refused(const Setting& setting);

// refusals.cpp
void mismatches_name_ranks_and_values(const Setting& setting);
void invalid_arguments(const Setting& setting);

}  // namespace sluice::api_test
