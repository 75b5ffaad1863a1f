// The interface by which a process sends. A killed aggregator stops at one of its sends.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "common/protocol/wire.hpp"
#include "tests/sim/buffer.hpp"
#include "tests/sim/network.hpp"

namespace sluice::sim {

class Sink final : public KeepingSink {
 public:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t kBacklog = 4096;  // frames, as common/net/tx_queue keeps

  Sink(Network& network, Endpoint self)
      : network_(network), self_(self), pool_(std::make_shared<Pool>()) {}

  Buffer allocate(std::size_t size) override {
    return is_dry() ? Buffer() : make_buffer(pool_, size);
  }
  void send(const Endpoint& to, Buffer buffer) override {
    Bytes datagram = datagram_of(buffer);
    require(++sent_in_turn_ <= kBacklog, "more is sent in one turn than a port can keep");
    if (stopped()) return;
    ++sent_;
    if (sends_left_ != kUnlimited) --sends_left_;
    if (room_ == 0) {
      ++full_;
      return;
    }
    if (room_ != kUnlimited) --room_;
    Endpoint from = self_;
    if (to.local_udp_port != 0) from.udp_port = to.local_udp_port;
    network_.send(from, to, std::move(datagram));
  }

  Buffer send_and_keep(const Endpoint& to, Buffer buffer) override {
    send(to, buffer.share());
    return buffer;
  }

  /// A received datagram in a buffer of this process; an empty one if the pool is empty.
  Buffer received(const Bytes& datagram) {
    if (is_dry()) return {};
    return make_buffer(pool_, is_encrypted(*datagram)  // it is decrypted in place
                                  ? std::make_shared<std::vector<std::byte>>(*datagram)
                                  : datagram);
  }

  /// The transmit ring has been emptied, more or less.
  void begin_turn() {
    room_ = network_.room_in_ring(kUnlimited);
    sent_in_turn_ = 0;
  }

  void stop_after(std::uint64_t sends) { sends_left_ = sends; }
  bool stopped() const { return sends_left_ == 0; }
  Pool& pool() { return *pool_; }
  const Endpoint& self() const { return self_; }
  std::uint64_t sent() const { return sent_; }  ///< by all generations of the process
  std::uint64_t full() const { return full_; }  ///< packets that found the ring full

 private:
  static bool is_encrypted(std::span<const std::byte> datagram) {
    return datagram.size() >= sizeof(wire::Header) &&
           (reinterpret_cast<const wire::Header*>(datagram.data())->flags & wire::kEncrypted) != 0;
  }
  bool is_dry() {
    const bool dry = pool_->dry || !network_.pool_has_one();
    if (dry) ++pool_->misses;
    return dry;
  }

  Network& network_;
  Endpoint self_;
  std::shared_ptr<Pool> pool_;
  std::uint64_t sends_left_ = kUnlimited;
  std::uint64_t room_ = kUnlimited;
  std::uint64_t sent_in_turn_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t full_ = 0;
};

}  // namespace sluice::sim
