// The rounds of a keyed op on one stream: where its round begins, and this rank's run of pairs,
// which may last several rounds (docs/protocol.md, "Keyed streams").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/round_source.hpp"

namespace sluice::worker {

class KeyedRounds final : public RoundSource {
 public:
  void begin(Operation& op, StreamId stream, const Session& session) override;
  bool owns() const override { return owns_; }
  bool has_arrived(Operation&) const override { return true; }  // pairs are never on a device
  void describe(Operation& op, Contribution& mine) const override;
  void load(Operation& op, Contribution& mine, std::byte* out) override;
  void keep(const Contribution& mine) override;
  bool fits(Operation& op, const Packet& packet, const Contribution& mine) const override;
  Applied apply(Operation& op, const Packet& packet, Contribution& mine) override;

 private:
  struct Run {
    KeyedOperation::Run extent = {};
    std::size_t counted = 0;  // of its first pairs: they were sent before, too
    bool is_sent = false;
    std::span<const std::byte> bytes = {};  // as they were sent, in the packet
    Buffer packet;
  };
  void take_run(Operation& op, KeyedOperation::At begin);
  void renew_run(Operation& op);

  StreamId stream_{};
  std::size_t room_ = 0;  // of a run, in bytes
  std::size_t result_room_ = 0;
  std::uint64_t horizon_ = 0;  // the round begins with this local key
  bool owns_ = false;          // the run is new
  Run run_;
};

}  // namespace sluice::worker
