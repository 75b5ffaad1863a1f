// How this process reaches its aggregators: packet memory, ports and the endpoints behind them.
// One port per vhost directory, and one for all aggregators on the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <spdlog/logger.h>

#include <sluice/sluice.hpp>

#include "common/base/endpoint.hpp"
#include "common/base/time.hpp"
#include "common/config/claim.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"

namespace sluice {

class Attachment {
 public:
  /// Opens memory and ports. Throws kInvalidArgument, kUnavailable.
  Attachment(const ContextOptions& options, std::shared_ptr<spdlog::logger> logger);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  net::DatagramIo& io() { return *io_; }

  /// Largest datagram that every port takes.
  std::uint16_t payload_bytes() const { return payload_bytes_; }

  std::size_t aggregators() const { return targets_.size(); }
  const std::string& name_of(std::size_t shard) const { return targets_[shard].name; }

  /// Where the shard listens, once its link is up and its address resolved.
  std::optional<Endpoint> find(std::size_t shard, Time now);

  /// Buffers that communicators may share between them.
  std::size_t buffers() const { return buffers_; }
  /// For the message when they do not suffice: the memory_mib that `buffers` would take.
  std::size_t memory_mib_for(std::size_t buffers) const;

 private:
  struct Target {
    std::string name;  // as it was given
    std::size_t port = 0;
    std::uint32_t ipv4 = 0;
    std::uint16_t udp_port = 0;
  };

  struct Link {
    std::string directory;  // of a vhost port; else empty
    net::PortOptions port;
  };

  void plan(const ContextOptions& options);
  void open();
  std::unique_ptr<net::Port> open(const Link& link);

  std::vector<Link> planned_;
  std::vector<Target> targets_;
  std::uint16_t payload_bytes_ = 0;
  std::vector<config::Claim> claims_;
  std::size_t buffers_ = 0;
  // In the order in which they depend on each other.
  std::unique_ptr<net::BufferPool> payloads_;
  std::unique_ptr<net::BufferPool> headers_;
  std::vector<std::unique_ptr<net::Port>> ports_;
  std::unique_ptr<net::DatagramIo> io_;
};

}  // namespace sluice
