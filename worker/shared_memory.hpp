// What this process shares with the daemons of its machine: slots in which a job's blocks lie,
// memory of tensors, and the daemons' regions for the sums. One socket per daemon, that is, per
// vhost directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/arena.hpp"
#include "common/memory/exchange.hpp"
#include "worker/config.hpp"

namespace sluice {

/// With the turn held.
class SharedMemory {
 public:
  /// Daemons may read this region, now and when they are back, until it is forgotten, with the job.
  /// It must live so long.
  void share(const memory::OwnRegion& slots);
  void forget(const memory::OwnRegion& slots, std::uint32_t job);

  /// Whether the daemon behind a vhost directory has given this process a region for a job's next
  /// session, has mapped the job's slots, too, and has answered for tensors. Asks it to.
  struct OfJob {
    std::uint32_t job = 0;
    std::uint16_t lane = 0;         ///< of the daemon
    std::uint64_t slots = 0;        ///< the region
    std::size_t results_bytes = 0;  ///< that a session may need
    memory::JobAtLane at_lane() const { return {job, lane}; }
  };
  bool is_ready(const std::string& directory, const OfJob& what);
  /// That region, to be named in a JOIN. One that was named before is asked for anew, as a session
  /// may have taken it: a later call returns the answer.
  std::optional<worker::EngineConfig::Results> results(const std::string& directory,
                                                       const OfJob& what);
  /// Where a tensor lies, if all daemons that are connected can read it there.
  std::optional<worker::TensorPlace> place_of(std::span<const std::byte> tensor);
  /// Why that daemon shares nothing, as far as it is known; empty: nothing is wrong.
  std::string problem_with(const std::string& directory);

 private:
  memory::RegionClient& client_of(const std::string& directory);
  void share_tensors();

  memory::Arena& arena_ = memory::Arena::of_process();
  std::uint64_t arena_changes_ = ~std::uint64_t{0};                   // as shared below
  std::vector<std::shared_ptr<const memory::OwnRegion>> of_tensors_;  // of the arena
  std::vector<const memory::OwnRegion*> slots_;
  std::map<std::string, memory::RegionClient> clients_;  // by vhost directory
  // By vhost directory, job and lane: the region that was named last.
  std::map<std::pair<std::string, memory::JobAtLane>, std::uint64_t> named_;
};

}  // namespace sluice
