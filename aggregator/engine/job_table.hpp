// The jobs that one engine knows, by id: those that are forming or active, and of those that have
// ended as many as have room, for late packets to get the same answer again.
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

  /// Null: there is none of this id.
  Job* find(std::uint32_t id) const {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : found->second.get();
  }
  /// A new job, of an id that is not known. Jobs that have ended may be forgotten for it.
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
