// Frames of this process's ports into a file that Wireshark and tcpdump read (by libpcap): also
// where no kernel sees them. Threads that poll copy what passes into a ring, and never wait; a
// thread of its own writes. Whoever gave the file may have it block any call (FUSE), so that thread
// alone touches it, and nobody waits for the thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/time.hpp"

struct rte_mbuf;

namespace sluice::net {

struct CaptureOptions {
  std::uint64_t frames_max = 0;  ///< then it ends; 0: no limit
  Duration longest{};            ///< the same
  std::size_t frame_bytes = 0;   ///< of each frame, 1..kMaxFrameBytes; what is longer is cut
};

class Capture {
 public:
  static constexpr std::size_t kMaxFrameBytes = 9728;

  struct Counters {
    std::uint64_t written = 0;  ///< frames
    std::uint64_t missed = 0;   ///< came while the writer, or memory, was too slow
    bool done = false;          ///< nothing more is captured
    std::string error;          ///< why it ended, if the file could not be written
  };

  /// Takes over `file`, an open descriptor of a regular file: if it is none, Counters tell. One at
  /// a time in a process. Throws Error: kInvalidArgument for bad options, kUnavailable without
  /// memory.
  Capture(int file, const CaptureOptions& options);
  /// Waits a second for a file that takes what is left, and then leaves it as it is.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// What a burst has brought.
  void received(std::span<rte_mbuf* const> frames);
  /// rte_eth_tx_burst, of a burst at most: what the port takes of the frames is captured.
  std::uint16_t send(std::uint16_t port, std::uint16_t queue, std::span<rte_mbuf*> frames);

  void stop();
  /// Once no other thread uses it any more: the rest is written. Does not wait for that.
  void finish();
  /// Whether it has been, and the file is closed.
  bool is_finished() const;
  Counters counters() const;

 private:
  struct State;

  bool captures() const;
  std::size_t copy(std::span<rte_mbuf* const> frames, std::span<rte_mbuf*> copies);
  void keep(std::span<rte_mbuf*> copies);

  const std::shared_ptr<State> state_;  // the writer's, too, which may outlive this
};

}  // namespace sluice::net
