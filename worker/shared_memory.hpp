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

  /// The region that the daemon behind a vhost directory gives this process for a job's next
  /// session, as it answered last, once it has mapped the job's slots, too, and has answered for
  /// tensors. Asks once more.
  std::optional<worker::EngineConfig::Results> results(const std::string& directory,
                                                       std::uint32_t job, std::uint64_t slots);
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
};

}  // namespace sluice
