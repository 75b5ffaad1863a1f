// Reads the trailers of sessions' packets as they are sent. No counter may occur twice with a key
// for different bytes, as an attacker who sees two such packets can forge others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>

#include "common/protocol/packet.hpp"
#include "tests/sim/bug.hpp"
#include "tests/sim/network.hpp"

namespace sluice::sim {

class CounterWatch {
 public:
  void on_send(const Endpoint& from, const Packet& packet) {
    if (!packet.is_authenticated() || wire::uses_handshake_key(packet.kind())) return;
    const auto bytes = packet.bytes();
    const auto& trailer = *reinterpret_cast<const wire::SessionTrailer*>(
        bytes.last(sizeof(wire::SessionTrailer)).data());
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t hash = std::hash<std::string_view>()(text);
    const auto [known, is_new] =
        sealed_.try_emplace({from.ipv4, key_of(packet), std::uint64_t{trailer.counter}}, hash);
    require(is_new || known->second == hash, "a counter stands in two different packets");
  }

 private:
  /// A member's token upstream, the epoch downstream: the field behind the Header.
  static std::uint64_t key_of(const Packet& packet) {
    return *reinterpret_cast<const wire::U64*>(packet.bytes().data() + sizeof(wire::Header));
  }

  std::map<std::tuple<Address, std::uint64_t, std::uint64_t>, std::size_t> sealed_;  // to a hash
};

}  // namespace sluice::sim
