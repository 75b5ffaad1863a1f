// Sole use of a directory or an address by one process: held until it is destroyed or the process
// dies, however it dies. No other user, except root, can hold one to keep us out.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/memory/descriptor.hpp"

namespace sluice::config {

class Claim {
 public:
  /// Claims an existing directory, into which others may write, by a lock on a file "lock" there.
  /// No other user can open that file, and it stays. Throws Error kUnavailable when another claim
  /// holds it or the file cannot be opened.
  static Claim on_directory(const std::string& path);

  /// Claims a UDP port at an address that Sluice has and the kernel does not, among the processes
  /// of this network namespace that may receive from a port. `ipv4` in host byte order. Throws
  /// Error kUnavailable when held.
  static Claim on_udp_port(std::uint32_t ipv4, std::uint16_t port);

 private:
  explicit Claim(memory::Descriptor held) : held_(std::move(held)) {}
  memory::Descriptor held_;
};

}  // namespace sluice::config
