// Reads the packets of resynchronisations as they are sent, and counts what happens in them.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "common/protocol/packet.hpp"
#include "tests/sim/counting.hpp"
#include "tests/sim/network.hpp"

namespace sluice::sim {

class RecoveryWatch {
 public:
  explicit RecoveryWatch(Coverage& coverage) : coverage_(coverage) {}

  void on_send(const Endpoint& from, const Endpoint& to, const Packet& packet);
  void on_kill(Address aggregator);

 private:
  struct Stream {
    std::map<unsigned, std::uint64_t> applied;  // by rank
    bool live = false;
    bool resumed_amidst_op = false;
  };
  struct Epoch {
    std::uint64_t id = 0;
    bool resumed = false;
    unsigned history = 0;
    unsigned stream_count = 0;
    std::map<unsigned, Stream> streams;
  };

  void on_welcome(const Endpoint& from, const Packet& packet);
  void on_sync(const Endpoint& to, const Packet& packet);
  void on_data(const Endpoint& to, const Packet& packet);
  void on_live(const Endpoint& from, const Packet& packet);
  void count(const Epoch& epoch, const Stream& stream);

  Coverage& coverage_;
  std::map<std::pair<Address, std::uint32_t>, Epoch> epochs_;  // by aggregator and job
};

}  // namespace sluice::sim
