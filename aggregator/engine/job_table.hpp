// The jobs that one engine knows, by id: all that are forming or active, and a limited number of
// ended ones, so that late packets get the same answer again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job.hpp"

namespace sluice::aggregator {

class JobTable {
 public:
  explicit JobTable(EngineContext& engine) : engine_(engine) {}

  /// Null if there is no job of this id.
  Job* find(std::uint32_t id) const {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : found->second.get();
  }
  /// Adds a job of an id that is not known. Ended jobs may be removed to make room.
  Job& add(std::uint32_t id);

  std::size_t live() const;  ///< forming or active

  /// Calls f(Job&) for each.
  template <class F>
  void for_each(F&& f) const {
    for (const auto& [id, job] : jobs_) f(*job);
  }
  /// Whether f(const Job&) is true for each.
  template <class F>
  bool all_of(F&& f) const {
    return std::all_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
      return f(static_cast<const Job&>(*entry.second));
    });
  }

 private:
  void forget_ended();

  EngineContext& engine_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Job>> jobs_;
};

}  // namespace sluice::aggregator
