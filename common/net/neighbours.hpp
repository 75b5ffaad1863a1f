// Who has which Ethernet address on a link: a bounded ARP table of the addresses somebody asked
// for. Anybody may say that an address is his, so it keeps the last few who said so: which of them
// is meant only shows when he answers.
#pragma once

#include <cstddef>
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
  static constexpr std::size_t kMaxClaims = 4;  // of one address
  static constexpr Duration kRequestInterval = std::chrono::milliseconds(100);

  /// `mac` once known, of whoever claimed the address last; else `ask` says whether a request is
  /// due (at most one per interval).
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

  /// All who claimed the address and did not let several requests pass since, the last one first.
  std::vector<MacAddress> claimants(std::uint32_t ipv4) const;

 private:
  static constexpr unsigned kRequestsMissed = 10;
  struct Claim {
    MacAddress mac{};
    unsigned requests = 0;  // that were made before it
  };
  struct Entry {
    std::uint32_t ipv4 = 0;
    Time next_request;
    unsigned requests = 0;
    std::vector<Claim> claims = {};  // the last one first
  };
  Entry* find(std::uint32_t ipv4);
  static void count_request(Entry& entry, Time now);

  std::vector<Entry> entries_;
};

}  // namespace sluice::net
