// Who has which Ethernet address on a link: a bounded ARP table of the addresses somebody asked
// for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/limits.hpp"
#include "common/base/time.hpp"
#include "common/net/framing.hpp"

namespace sluice::net {

class Neighbours {
 public:
  static constexpr std::size_t kMax = limits::kMaxNeighbours;
  static constexpr Duration kRequestInterval = std::chrono::milliseconds(100);

  /// `mac` once known; else `ask` says whether a request is due (at most one per interval).
  struct Answer {
    std::optional<MacAddress> mac;
    bool ask = false;
    bool table_full = false;
  };
  Answer resolve(std::uint32_t ipv4, Time now);

  /// Takes what an ARP packet says of its sender; only about addresses asked for (so that nobody
  /// can fill the table), but also when one of those moves. True if that was news.
  bool learn(std::uint32_t ipv4, const MacAddress& mac);

  /// Whether a request is due for an address that is known already: another machine may have it by
  /// now. What is known stays until it answers.
  bool ask_again(std::uint32_t ipv4, Time now);

 private:
  struct Entry {
    std::uint32_t ipv4 = 0;
    std::optional<MacAddress> mac;
    Time next_request;
  };
  Entry* find(std::uint32_t ipv4);

  std::vector<Entry> entries_;
};

}  // namespace sluice::net
