// Sole use of a directory or an address by one process: held until it is destroyed or the process
// dies, however it dies. Nothing is left behind in the file system.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::config {

class Claim {
 public:
  /// Of an existing directory, whose files other processes may use. Throws Error kUnavailable when
  /// another claim holds it or it cannot be opened.
  static Claim on_directory(const std::string& path);

  /// Of a UDP port at an address that Sluice has and the kernel does not, among the processes of
  /// this network namespace. `ipv4` in host byte order. Throws Error kUnavailable when held.
  static Claim on_udp_port(std::uint32_t ipv4, std::uint16_t port);

  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&&) = delete;
  ~Claim();

 private:
  explicit Claim(int fd) : fd_(fd) {}
  int fd_;
};

/// Whether some process has a claim on the directory.
bool is_claimed_directory(const std::string& path);

}  // namespace sluice::config
