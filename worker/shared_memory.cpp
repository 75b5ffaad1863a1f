#include "worker/shared_memory.hpp"

#include "common/net/vhost.hpp"

namespace sluice {

void SharedMemory::share(const memory::OwnRegion& slots) {
  regions_.push_back(&slots);
  for (auto& [directory, client] : clients_) client.share(slots);
}

void SharedMemory::forget(const memory::OwnRegion& slots, std::uint32_t job) {
  std::erase(regions_, &slots);
  for (auto& [directory, client] : clients_) {
    client.forget(slots);
    client.forget_results(job);
  }
}

memory::RegionClient& SharedMemory::client_of(const std::string& directory) {
  const auto [found, is_new] = clients_.try_emplace(directory, net::region_socket(directory));
  if (is_new)
    for (const auto* const slots : regions_) found->second.share(*slots);
  return found->second;
}

std::optional<worker::EngineConfig::Results> SharedMemory::results(const std::string& directory,
                                                                   std::uint32_t job) {
  memory::RegionClient& client = client_of(directory);
  client.ask_for_results(job);
  client.poll();
  const auto region = client.results(job);
  if (!region || !client.is_shared()) return std::nullopt;
  return worker::EngineConfig::Results{region->id(), region, region->bytes()};
}

std::string SharedMemory::problem_with(const std::string& directory) {
  return client_of(directory).problem();
}

}  // namespace sluice
