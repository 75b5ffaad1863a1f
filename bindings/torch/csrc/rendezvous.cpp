#include "bindings/torch/csrc/rendezvous.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <random>
#include <utility>
#include <vector>

#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"

namespace sluice_torch {
namespace {

using std::chrono::milliseconds;

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

/// Where a group's ranks meet, twice: before one takes what rank 0 announces, and before one joins,
/// for which it must have opened its port. A store may serve groups one after the other under the
/// same names, so each rank counts the groups that it has made.
class GroupStore {
 public:
  GroupStore(c10d::Store& store, int rank, int size) : store_(store), rank_(rank), size_(size) {
    const std::string counter = "sluice/groups/" + std::to_string(rank);
    prefix_ = "sluice/" + std::to_string(store.add(counter, 1)) + '/';
  }

  /// Until every rank has come so far; what rank 0 has brought. Throws kFormationFailed, also where
  /// one has told that it cannot join.
  std::string meet(const std::string& brought, milliseconds timeout) {
    set(key(meeting_, rank_), brought);
    wait_for_all(timeout);
    const std::string why = told(meeting_);
    if (!why.empty()) throw sluice::Error(sluice::ErrorCode::kFormationFailed, why);
    return get(key(meeting_++, 0));
  }

  /// Tells the others that this rank cannot join, so that none waits for it. Returns what another
  /// has told before, or nothing.
  std::string tell(const std::string& why) noexcept try {
    const bool is_first = store_.add(prefix_ + "failures", 1) == 1;
    if (is_first) set(why_key(meeting_), "rank " + std::to_string(rank_) + " cannot join: " + why);
    for (int meeting = meeting_; meeting < kMeetings; ++meeting) set(key(meeting, rank_), "");
    return is_first ? "" : told(meeting_);
  } catch (const std::exception&) {  // the store is gone, as its other users will see
    return "";
  }

 private:
  static constexpr int kMeetings = 2;

  void wait_for_all(milliseconds timeout) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key(meeting_, rank));
    try {
      store_.wait(keys, timeout);
    } catch (const std::exception&) {
      const std::string ranks = missing();
      if (ranks.empty()) throw;
      throw sluice::Error(sluice::ErrorCode::kFormationFailed,
                          "the group's ranks have not met within " +
                              std::to_string(timeout.count()) + " ms; missing: " + ranks);
    }
  }

  std::string missing() {
    std::string ranks;
    for (int rank = 0; rank < size_; ++rank)
      if (!store_.check({key(meeting_, rank)}))
        ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return ranks;
  }

  std::string key(int meeting, int rank) const {
    return prefix_ + std::to_string(meeting) + '/' + std::to_string(rank);
  }
  std::string why_key(int meeting) const { return prefix_ + std::to_string(meeting) + "/why"; }
  std::string told(int meeting) {
    return store_.check({why_key(meeting)}) ? get(why_key(meeting)) : "";
  }

  void set(const std::string& key, const std::string& text) {
    store_.set(key, {text.begin(), text.end()});
  }
  std::string get(const std::string& key) {
    const auto text = store_.get(key);
    return {text.begin(), text.end()};
  }

  c10d::Store& store_;
  const int rank_;
  const int size_;
  std::string prefix_;
  int meeting_ = 0;  // the next; after the last the ranks join
};

Membership join(GroupStore& group_store, int rank, int size, milliseconds timeout,
                const Settings& settings) {
  Options options = configured(settings);
  if (!settings.contains("job")) options.job.job = random_job();
  const auto& aggregators = options.context.aggregators;
  adopt(group_store.meet(rank == 0 ? announcement(options.job.job, aggregators) : "", timeout),
        options);
  options.job.rank = static_cast<std::uint16_t>(rank);
  options.job.world_size = static_cast<std::uint16_t>(size);
  options.job.join_timeout = std::clamp(timeout, milliseconds(1), options.job.join_timeout);
  auto context = sluice::Context::shared(options.context);
  group_store.meet("", options.job.join_timeout);
  auto communicator = std::make_unique<sluice::Communicator>(*context, options.job);
  if (options.context.shared_memory) note_shared_memory();
  return {std::move(context), std::move(communicator)};
}

}  // namespace

Membership join(c10d::Store& store, int rank, int size, milliseconds timeout,
                const Settings& settings) {
  GroupStore group_store(store, rank, size);
  try {
    return join(group_store, rank, size, timeout, settings);
  } catch (const sluice::Error& error) {
    const std::string told = group_store.tell(error.what());
    const std::string why = error.what();
    const bool adds = !told.empty() && !told.ends_with(why);
    std::rethrow_exception(translated({error.code(), why + (adds ? "; " + told : "")}));
  } catch (const std::exception& error) {
    group_store.tell(error.what());
    throw;
  }
}

}  // namespace sluice_torch
