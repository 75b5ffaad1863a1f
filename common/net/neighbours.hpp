// A bounded ARP table: the Ethernet addresses of those neighbours that somebody asked for. Any host
// may claim an address, so the table keeps the last few claims: which host is meant only shows when
// it answers.
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
  static constexpr std::size_t kMaxClaims = 4;  // for one address
  static constexpr Duration kRequestInterval = std::chrono::milliseconds(100);

  /// `mac` is the address of the last host that claimed it, if one is known. If not, `ask` says
  /// whether a request is due (at most one per interval).
  struct Answer {
    std::optional<MacAddress> mac;
    bool ask = false;
    bool table_full = false;
  };
  Answer resolve(std::uint32_t ipv4, Time now);

  /// Takes what an ARP packet says of its sender. It only takes addresses that were asked for, so
  /// that nobody can fill the table, but also notices when one of those moves. Returns whether that
  /// was new.
  bool learn(std::uint32_t ipv4, const MacAddress& mac);

  /// Whether a request is due for an address that is known already: another machine may have it by
  /// now. The known address stays until that machine answers.
  bool ask_again(std::uint32_t ipv4, Time now);

  /// All hosts that claim the address and have not ignored several requests since; the last one
  /// first.
  std::vector<MacAddress> claimants(std::uint32_t ipv4) const;

 private:
  static constexpr unsigned kRequestsMissed = 10;
  struct Claim {
    MacAddress mac{};
    unsigned requests = 0;  // made before this claim
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
