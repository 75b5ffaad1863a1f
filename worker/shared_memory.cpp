#include "worker/shared_memory.hpp"

#include <algorithm>
#include <utility>

#include "common/net/vhost.hpp"

namespace sluice {

void SharedMemory::share(const memory::OwnRegion& slots) {
  slots_.push_back(&slots);
  for (auto& [directory, client] : clients_) client.share(slots);
}

void SharedMemory::forget(const memory::OwnRegion& slots, std::uint32_t job) {
  std::erase(slots_, &slots);
  std::erase_if(named_, [&](const auto& entry) { return entry.first.second.job == job; });
  for (auto& [directory, client] : clients_) {
    client.forget(slots);
    client.forget_results(job);
  }
}

/// Tells daemons which regions of the arena came and went.
void SharedMemory::share_tensors() {
  const std::uint64_t changes = arena_.changes();
  if (changes == arena_changes_) return;
  arena_changes_ = changes;
  auto regions = arena_.regions();
  const auto lacks = [](const auto& all, const auto& one) {
    return std::find(all.begin(), all.end(), one) == all.end();
  };
  for (auto& [directory, client] : clients_) {
    for (const auto& region : of_tensors_)
      if (lacks(regions, region)) client.forget(*region);
    for (const auto& region : regions)
      if (lacks(of_tensors_, region)) client.share(*region);
  }
  of_tensors_ = std::move(regions);
}

memory::RegionClient& SharedMemory::client_of(const std::string& directory) {
  const auto [found, is_new] = clients_.try_emplace(directory, net::region_socket(directory));
  if (is_new) {
    for (const auto* const slots : slots_) found->second.share(*slots);
    for (const auto& region : of_tensors_) found->second.share(*region);
  }
  return found->second;
}

bool SharedMemory::is_ready(const std::string& directory, const OfJob& what) {
  share_tensors();
  memory::RegionClient& client = client_of(directory);
  if (!client.results(what.at_lane())) client.ask_for_results(what.at_lane(), what.results_bytes);
  client.poll();
  return client.results(what.at_lane()) && client.is_mapped(what.slots) && client.is_settled();
}

std::optional<worker::EngineConfig::Results> SharedMemory::results(const std::string& directory,
                                                                   const OfJob& what) {
  if (!is_ready(directory, what)) return std::nullopt;
  memory::RegionClient& client = client_of(directory);
  const auto region = client.results(what.at_lane());
  if (std::exchange(named_[{directory, what.at_lane()}], region->id()) == region->id()) {
    client.ask_for_results(what.at_lane(), what.results_bytes);
    client.poll();
  }
  return worker::EngineConfig::Results{region->id(), region, region->bytes()};
}

/// A daemon maps a new region a moment after it was told; tensors there are copied until then.
std::optional<worker::TensorPlace> SharedMemory::place_of(std::span<const std::byte> tensor) {
  const auto place = arena_.find(tensor);
  if (!place) return std::nullopt;
  share_tensors();
  bool is_mapped = true;
  for (auto& [directory, client] : clients_) {
    if (!client.is_connected()) continue;
    if (!client.is_settled()) client.poll();
    is_mapped &= client.is_mapped(place->region);
  }
  if (!is_mapped) return std::nullopt;
  return worker::TensorPlace{place->region, place->offset};
}

std::string SharedMemory::problem_with(const std::string& directory) {
  return client_of(directory).problem();
}

}  // namespace sluice
