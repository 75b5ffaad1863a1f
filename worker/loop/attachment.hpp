// How this process reaches its aggregators: packet memory, ports and the endpoints behind them.
// There is one port per vhost directory, and one for all aggregators on the network. A shard has
// one or more alternatives, in order: its aggregator and the standbys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/base/endpoint.hpp"
#include "common/base/time.hpp"
#include "common/config/address.hpp"
#include "common/config/claim.hpp"
#include "common/log/logger.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/fault_plan.hpp"
#include "common/net/pool.hpp"
#include "worker/loop/links.hpp"

namespace sluice {

/// The largest payload of a datagram in an IP packet of `mtu` bytes.
constexpr std::uint16_t payload_bytes_of(std::uint16_t mtu) {
  return static_cast<std::uint16_t>(mtu - net::kIpv4Bytes - net::kUdpBytes);
}

class Attachment {
 public:
  /// Opens memory and ports; the port of the network gets so many queues. If no aggregator is
  /// named, it opens nothing. Throws kInvalidArgument, kUnavailable.
  Attachment(const ContextOptions& options, std::shared_ptr<spdlog::logger> logger,
             std::uint16_t network_queues = 1);
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  /// False if no aggregator is named: then there are neither packet memory nor ports.
  bool has_ports() const { return io_ != nullptr; }
  net::DatagramIo& io() { return *io_; }
  void flush() {
    if (io_) io_->flush();
  }
  /// As DatagramIo::arm(). Without ports there is nothing to wait for.
  bool arm(net::RxEvents& events) { return !io_ || io_->arm(events); }
  bool tells() const { return io_ && io_->tells(); }
  bool has_backlog() const { return io_ && io_->has_backlog(); }

  /// For a caller that polls with several threads: returns an io for each queue of a port. io() no
  /// longer has these queues. The ios share the packet memory, and must be destroyed before this
  /// object. Throws kAggregatorLost if the link is down.
  std::vector<std::unique_ptr<net::DatagramIo>> split_queues(std::uint16_t port_id);

  /// The largest datagram that every port accepts.
  std::uint16_t payload_bytes() const { return payload_bytes_; }

  /// Whether packets carry a CRC32C.
  bool computes_integrity() const { return integrity_; }

  std::size_t aggregators() const { return targets_.size(); }
  const std::string& name_of(std::size_t shard) const { return targets_[shard].name; }

  /// The shard's own address and those of its standbys.
  unsigned addresses_of(std::size_t shard) const {
    return static_cast<unsigned>(targets_[shard].alternatives.size());
  }

  /// To be called in every turn of the polling thread: notices links that go down and come up, and
  /// reports the groups to the network.
  void watch(Time now, const Links::Changed& changed) {
    links_->watch(now, changed);
    io_->on_time(now);
  }

  /// See Links::set_groups.
  void set_groups(std::span<const std::uint32_t> groups, Time now) {
    links_->set_groups(groups, now);
  }

  /// The endpoint at which to join the shard first: the first alternative whose link is up and
  /// whose address is known. A standby is chosen only if those before it have not answered for a
  /// while.
  std::optional<Endpoint> find(std::size_t shard, Time now);

  /// The endpoint at which to try again, for the polling thread: alternative `attempt` modulo their
  /// number. Nothing if its link is down or its address is not known yet. From the second attempt
  /// on the address is asked for again, as another machine may have it by now. If several machines
  /// claim it, they are tried one after the other.
  std::optional<Endpoint> locate(std::size_t shard, unsigned attempt, Time now);

  /// A reason for the message about a shard that was not found: ": why", or empty.
  std::string why_unreachable(std::size_t shard) const;

  /// A reason for the message about a join that failed: "; which addresses several hosts claim", or
  /// empty.
  std::string rival_claims() const;

  /// The number of buffers that communicators may share.
  std::size_t buffers() const;
  /// For the message when there are too few buffers: the memory_mib that `buffers` would need.
  std::size_t memory_mib_for(std::size_t buffers) const;

 private:
  struct Alternative {
    std::size_t link = 0;
    std::uint32_t ipv4 = 0;
    std::uint16_t udp_port = 0;
    std::optional<net::MacAddress> mac = {};  // as it was resolved last
    // When it may be logged again that the address has another MAC.
    Time may_say = {};
  };
  struct Target {
    std::string name;  // as it was given
    std::vector<Alternative> alternatives;
    std::optional<Time> sought;  // when it was first looked for
  };

  void plan(const ContextOptions& options, std::uint16_t network_queues);
  void plan_memory(const ContextOptions& options);
  std::size_t ring_buffers() const;
  void start_memory(const ContextOptions& options, const std::shared_ptr<spdlog::logger>& logger);
  std::size_t link_to(const config::AggregatorAddress& address, const ContextOptions& options,
                      std::uint16_t network_queues);
  std::vector<std::vector<std::size_t>> choices() const;
  std::optional<Endpoint> reach(Alternative& alternative, std::optional<std::size_t> turn,
                                Time now);
  std::optional<std::size_t> link_of(std::uint16_t port_id) const;
  void note(const net::MacAddress& mac, Alternative& alternative, Time now) const;

  const std::shared_ptr<spdlog::logger> logger_;
  std::vector<LinkPlan> planned_;
  std::optional<config::InterfaceAddress> own_address_;  // on the network
  std::vector<Target> targets_;
  std::uint16_t payload_bytes_ = 0;
  bool integrity_ = false;
  net::FaultPlan faults_;
  std::size_t memory_mib_ = 0;
  std::size_t all_buffers_ = 0;  // including those in the rings
  std::vector<config::Claim> claims_;
  // Each of these depends on those before it.
  std::unique_ptr<net::BufferPool> payloads_;
  std::unique_ptr<net::BufferPool> headers_;
  std::unique_ptr<net::DatagramIo> io_;
  std::unique_ptr<Links> links_;
};

}  // namespace sluice
