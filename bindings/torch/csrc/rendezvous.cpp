#include "bindings/torch/csrc/rendezvous.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/ConstexprCrc.h>

#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"
#include "bindings/torch/csrc/without_gil.hpp"

namespace sluice_torch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Who waits looks so often whether all have come, and lets handlers of signals run.
constexpr milliseconds kLookPeriod{50};
/// Who has waited so long says whom for, once, as joins of the library do.
constexpr std::chrono::seconds kSilentWait{3};

struct Options {
  sluice::ContextOptions context = sluice::ContextOptions::from_environment();
  sluice::JobOptions job = sluice::JobOptions::from_environment();
};

Options configured(const Settings& settings) {
  Options options;
  for (const auto& [name, text] : settings)
    if (sluice::ContextOptions::has(name))
      options.context.set(name, text);
    else
      options.job.set(name, text);
  return options;
}

// ------------------------------------------------------------------------------------- the store

std::uint32_t random_job() {
  return std::random_device{}() & 0x7FFF'FFFF;
}

/// "JOB AGGREGATOR,AGGREGATOR": what rank 0 tells.
std::string announcement(const sluice::JobId& job, const std::vector<std::string>& aggregators) {
  std::string text = job.text() + ' ';
  for (const std::string& aggregator : aggregators)
    text += (&aggregator == &aggregators.front() ? "" : ",") + aggregator;
  return text;
}

void adopt(const std::string& announced, Options& options) {
  const auto blank = announced.find(' ');
  options.job.set("job", announced.substr(0, blank));
  const std::string aggregators = announced.substr(blank + 1);
  if (options.context.aggregators.empty() && !aggregators.empty())
    options.context.set("aggregators", aggregators);
}

using Members = std::vector<std::int64_t>;  // their global ranks, by their ranks in the group

std::string listed(const Members& members) {
  std::string text;
  for (const std::int64_t member : members)
    text += (text.empty() ? "" : ", ") + std::to_string(member);
  return text;
}

Members parsed_members(const std::string& text) {
  std::istringstream numbers(text);
  Members members;
  for (std::int64_t member = 0; numbers >> member; numbers.ignore(1)) members.push_back(member);
  return members;
}

bool have_common(const Members& some, const Members& others) {
  return std::ranges::any_of(
      some, [&](std::int64_t member) { return std::ranges::find(others, member) != others.end(); });
}

/// Of a default group, so that groups are not taken for those of the same name that were made
/// before PyTorch was initialized again over the same store. 0: the default group is not ours.
std::atomic<std::int64_t> world_number{0};

/// A group's keys in the store.
class GroupKeys {
 public:
  /// `number`: a store may serve groups one after the other under the same names, so each rank
  /// counts the groups that it has made.
  GroupKeys(Members members, std::int64_t number)
      : members_(std::move(members)),
        number_(number),
        prefix_(name_of(members_) + std::to_string(number) + '/') {}

  /// "sluice/HASH/": groups of other members do not meet.
  static std::string name_of(const Members& members) {
    return "sluice/" + std::to_string(c10::util::crc64(listed(members)).checksum()) + '/';
  }

  const Members& members() const { return members_; }
  std::int64_t number() const { return number_; }
  std::string failures() const { return prefix_ + "failures"; }
  std::string registered() const { return prefix_ + "registered"; }
  std::string why(int meeting) const { return prefix_ + std::to_string(meeting) + "/why"; }
  std::string of_rank(int meeting, std::size_t rank) const {
    return prefix_ + std::to_string(meeting) + '/' + std::to_string(rank);
  }

 private:
  Members members_;
  std::int64_t number_;
  std::string prefix_;
};

/// Where a group's ranks meet, twice: before one takes what rank 0 announces, and before one joins,
/// for which it must have opened its port.
///
/// PyTorch numbers the calls of new_group of each process, and gives groups of the same number the
/// same part of the store. Disjoint groups may be made there at the same time, each by its own
/// members. Groups that have some members in common may not: a rank made its groups in another
/// order than the others, and would wait for them for ever. So all groups are listed in that part.
class GroupStore {
 public:
  GroupStore(c10d::Store& store, int rank, const Members& members)
      : store_(store),
        rank_(static_cast<std::size_t>(rank)),
        group_(members, store.add(GroupKeys::name_of(members) + std::to_string(rank), 1)) {}

  std::int64_t number() const { return group_.number(); }

  void wait_silently() { tells_waits_ = false; }

  /// Before the first meeting. Throws kFormationFailed if there is a group of some of the same
  /// ranks and others; the members of both are told.
  void compare_members() {
    if (store_.add(group_.registered(), 1) == 1)
      set(list_entry(store_.add(list_entry(0), 1)),
          std::to_string(group_.number()) + ' ' + listed(group_.members()));
    const std::int64_t count = store_.add(list_entry(0), 0);
    for (std::int64_t entry = 1; entry <= count; ++entry) {
      const std::string text = get(list_entry(entry));
      const GroupKeys other(parsed_members(text.substr(text.find(' '))), std::stoll(text));
      if (other.members() != group_.members() && have_common(other.members(), group_.members()))
        refuse_both(other);
    }
  }

  /// Until every rank has come so far; what rank 0 has brought. Throws kFormationFailed, also where
  /// one has told that it cannot join.
  std::string meet(const std::string& brought, milliseconds timeout) {
    set(group_.of_rank(meeting_, rank_), brought);
    wait_for_all(timeout);
    const std::string why = told(meeting_);
    if (!why.empty()) throw sluice::Error(sluice::ErrorCode::kFormationFailed, why);
    return get(group_.of_rank(meeting_++, 0));
  }

  /// Tells the others that this rank cannot join, so that none waits for it. Returns what another
  /// has told before, or nothing.
  std::string tell(const std::string& why) noexcept try {
    const bool is_first =
        tell_first(group_, meeting_, "rank " + std::to_string(rank_) + " cannot join: " + why);
    for (int meeting = meeting_; meeting < kMeetings; ++meeting)
      set(group_.of_rank(meeting, rank_), "");
    return is_first ? "" : told(meeting_);
  } catch (const std::exception&) {  // the store is gone, as its other users will see
    return "";
  }

 private:
  static constexpr int kMeetings = 2;

  [[noreturn]] void refuse_both(const GroupKeys& other) {
    const auto [first, second] = std::minmax(group_.members(), other.members());
    const std::string why = "some ranks make a group of ranks " + listed(first) +
                            ", others one of ranks " + listed(second) +
                            " at the same time; all must call new_group in the same order";
    for (const GroupKeys* const group : {&group_, &other}) {
      tell_first(*group, 0, why);
      // Also for those who never come.
      for (std::size_t rank = 0; rank < group->members().size(); ++rank)
        set(group->of_rank(0, rank), "");
    }
    throw sluice::Error(sluice::ErrorCode::kFormationFailed, why);
  }

  /// What is told first is what everyone is told, from that meeting on, and when they join.
  bool tell_first(const GroupKeys& group, int meeting, const std::string& why) {
    if (store_.add(group.failures(), 1) != 1) return false;
    for (; meeting <= kMeetings; ++meeting) set(group.why(meeting), why);
    return true;
  }

  /// By looks of its own: a wait of the store cannot be ended.
  void wait_for_all(milliseconds timeout) {
    const auto began = Clock::now();
    bool tells = tells_waits_;
    milliseconds pause{1};
    for (std::size_t rank = 0; rank < group_.members().size();) {
      if (store_.check({group_.of_rank(meeting_, rank)})) {
        ++rank;
        continue;
      }
      const auto waited = Clock::now() - began;
      if (waited >= timeout) refuse_missing(timeout);
      if (waited >= kSilentWait && std::exchange(tells, false))
        std::cerr << "sluice: the join has waited " << kSilentWait.count() << " s for " << missing()
                  << " to make the same group" << std::endl;
      run_signal_handlers();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLookPeriod);
    }
  }

  void refuse_missing(milliseconds timeout) {
    const std::string ranks = missing();
    if (ranks.empty()) return;  // they have come now
    throw sluice::Error(sluice::ErrorCode::kFormationFailed,
                        "the group's ranks have not met within " + std::to_string(timeout.count()) +
                            " ms; missing: " + ranks);
  }

  std::string missing() {
    std::string ranks;
    for (std::size_t rank = 0; rank < group_.members().size(); ++rank)
      if (!store_.check({group_.of_rank(meeting_, rank)}))
        ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return ranks;
  }

  std::string told(int meeting) {
    return store_.check({group_.why(meeting)}) ? get(group_.why(meeting)) : "";
  }

  /// 0: their number.
  static std::string list_entry(std::int64_t entry) {
    return "sluice/groups/" + std::to_string(world_number) + '/' + std::to_string(entry);
  }

  void set(const std::string& key, const std::string& text) {
    store_.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  std::string get(const std::string& key) {
    const auto text = store_.get(key);
    return {text.begin(), text.end()};
  }

  c10d::Store& store_;
  const std::size_t rank_;
  const GroupKeys group_;
  bool tells_waits_ = true;
  int meeting_ = 0;  // the next; after the last the ranks join
};

/// On a thread of its own, while this one lets handlers of signals run. What they raise ends it.
std::unique_ptr<sluice::Communicator> join_beside(sluice::Context& context,
                                                  const sluice::JobOptions& options,
                                                  int& interrupt) {
  auto joined = std::async(std::launch::async, [&context, &options] {
    return std::make_unique<sluice::Communicator>(context, options);
  });
  try {
    while (joined.wait_for(kLookPeriod) != std::future_status::ready) run_signal_handlers();
  } catch (...) {
    __atomic_store_n(&interrupt, 1, __ATOMIC_RELAXED);
    joined.wait();
    throw;
  }
  return joined.get();
}

Membership join(GroupStore& group_store, int rank, int size, milliseconds timeout,
                const Settings& settings) {
  Options options = configured(settings);
  if (options.context.log_level == "error") group_store.wait_silently();
  group_store.compare_members();
  if (!settings.contains("job")) options.job.job = random_job();
  const auto& aggregators = options.context.aggregators;
  adopt(group_store.meet(rank == 0 ? announcement(options.job.job, aggregators) : "", timeout),
        options);
  options.job.rank = static_cast<std::uint16_t>(rank);
  options.job.world_size = static_cast<std::uint16_t>(size);
  options.job.join_timeout = std::clamp(timeout, milliseconds(1), options.job.join_timeout);
  auto context = sluice::Context::shared(options.context);
  group_store.meet("", options.job.join_timeout);
  auto interrupt = std::make_unique<int>(0);
  options.job.interrupt = interrupt.get();
  auto communicator = join_beside(*context, options.job, *interrupt);
  if (options.context.host_level) note_shared_memory();
  return {std::move(interrupt), std::move(context), std::move(communicator)};
}

}  // namespace

Membership join(c10d::Store& store, int rank, int size,
                const std::vector<std::int64_t>& global_ranks, milliseconds timeout,
                const Settings& settings) {
  Members members = global_ranks;
  if (members.empty())
    for (int member = 0; member < size; ++member) members.push_back(member);
  GroupStore group_store(store, rank, members);
  try {
    auto membership = join(group_store, rank, size, timeout, settings);
    if (global_ranks.empty()) world_number = group_store.number();
    return membership;
  } catch (const sluice::Error& error) {
    const std::string told = group_store.tell(error.what());
    const std::string why = error.what();
    const bool adds = !told.empty() && !told.ends_with(why);
    std::rethrow_exception(translated({error.code(), why + (adds ? "; " + told : "")}));
  } catch (const pybind11::error_already_set&) {
    group_store.tell("its wait for the others was interrupted");
    throw;
  } catch (const std::exception& error) {
    group_store.tell(error.what());
    throw;
  }
}

}  // namespace sluice_torch
