#include "bindings/torch/csrc/rendezvous.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "bindings/torch/csrc/errors.hpp"

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

/// The process's context, opened by the first who asks and closed when nobody has it any more.
std::shared_ptr<sluice::Context> shared_context(const sluice::ContextOptions& options,
                                                const Settings& settings) {
  static std::mutex mutex;
  static std::weak_ptr<sluice::Context> existing;
  static Settings opened_with;
  const std::lock_guard lock(mutex);
  if (auto context = existing.lock()) {
    for (const auto& [name, text] : settings)
      if (sluice::ContextOptions::has(name) &&
          (!opened_with.contains(name) || opened_with.at(name) != text))
        throw failure("pg_options: '" + name +
                      "' is a setting of the whole process, for which its first group decides");
    return context;
  }
  auto context = std::make_shared<sluice::Context>(options);
  existing = context;
  opened_with = settings;
  return context;
}

// ------------------------------------------------------------------------------------- the store

std::uint32_t random_job() {
  return std::random_device{}() & 0x7FFF'FFFF;
}

/// "JOB AGGREGATOR,AGGREGATOR": what rank 0 tells.
std::string announcement(std::uint32_t job, const std::vector<std::string>& aggregators) {
  std::string text = std::to_string(job) + ' ';
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

/// One group's keys. A store may serve groups one after the other under the same names, so each
/// rank counts the groups that it has made.
class Board {
 public:
  Board(c10d::Store& store, int rank, int size) : store_(store), rank_(rank), size_(size) {
    const std::string counter = "sluice/groups/" + std::to_string(rank);
    prefix_ = "sluice/" + std::to_string(store.add(counter, 1)) + '/';
  }

  void post(const std::string& text) { store_.set(key(rank_), {text.begin(), text.end()}); }

  void wait_for_all(milliseconds timeout) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key(rank));
    try {
      store_.wait(keys, timeout);
    } catch (const std::exception&) {
      const std::string ranks = missing();
      if (ranks.empty()) throw;
      throw failure("the group's ranks have not met within " + std::to_string(timeout.count()) +
                    " ms; missing: " + ranks);
    }
  }

  std::string of_rank_0() {
    const auto text = store_.get(key(0));
    return {text.begin(), text.end()};
  }

 private:
  std::string key(int rank) const { return prefix_ + std::to_string(rank); }

  std::string missing() {
    std::string ranks;
    for (int rank = 0; rank < size_; ++rank)
      if (!store_.check({key(rank)}))
        ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return ranks;
  }

  c10d::Store& store_;
  const int rank_;
  const int size_;
  std::string prefix_;
};

}  // namespace

Membership join(c10d::Store& store, int rank, int size, milliseconds timeout,
                const Settings& settings) try {
  Options options = configured(settings);
  if (!settings.contains("job")) options.job.job = random_job();
  Board board(store, rank, size);
  board.post(rank == 0 ? announcement(options.job.job, options.context.aggregators) : "");
  board.wait_for_all(timeout);
  adopt(board.of_rank_0(), options);
  options.job.rank = static_cast<std::uint16_t>(rank);
  options.job.world_size = static_cast<std::uint16_t>(size);
  options.job.join_timeout = std::clamp(timeout, milliseconds(1), options.job.join_timeout);
  auto context = shared_context(options.context, settings);
  auto communicator = std::make_unique<sluice::Communicator>(*context, options.job);
  return {std::move(context), std::move(communicator)};
} catch (const sluice::Error& error) {
  throw failure(error);
}

}  // namespace sluice_torch
