// Captures frames of this process's ports to a file for Wireshark and tcpdump (by libpcap). This
// also works where no kernel sees the frames. Polling threads copy frames into a ring and never
// wait; another thread writes. The user who gave the file may make any call on it block (FUSE), so
// only that thread touches it, and nobody waits for the thread.
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
  std::uint64_t frames_max = 0;  ///< ends the capture; 0: no limit
  Duration longest{};            ///< ends the capture; 0: no limit
  /// How much of each frame is kept, 1..kMaxFrameBytes; longer frames are cut.
  std::size_t frame_bytes = 0;
};

class Capture {
 public:
  static constexpr std::size_t kMaxFrameBytes = 9728;

  struct Counters {
    std::uint64_t written = 0;  ///< frames
    std::uint64_t missed = 0;   ///< frames that came while the writer or memory was too slow
    bool done = false;          ///< nothing more is captured
    std::string error;          ///< why it ended, if the file could not be written
  };

  /// Takes over `file`, an open descriptor of a regular file; if it is another kind of file,
  /// Counters say so. There can be one at a time in a process. Throws Error: kInvalidArgument for
  /// bad options, kUnavailable if there is no memory.
  Capture(int file, const CaptureOptions& options);
  /// Waits for at most a second until the file has accepted the rest.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Captures a received burst.
  void received(std::span<rte_mbuf* const> frames);
  /// As rte_eth_tx_burst, for at most one burst; captures what the port accepts.
  std::uint16_t send(std::uint16_t port, std::uint16_t queue, std::span<rte_mbuf*> frames);

  void stop();
  /// Ends the capture and lets the rest be written, without waiting for it. No other thread may use
  /// it any more.
  void finish();
  /// Whether the rest has been written and the file is closed.
  bool is_finished() const;
  Counters counters() const;

 private:
  struct State;

  bool captures() const;
  std::size_t copy(std::span<rte_mbuf* const> frames, std::span<rte_mbuf*> copies);
  void keep(std::span<rte_mbuf*> copies);

  const std::shared_ptr<State> state_;  // shared with the writer, which may live longer
};

}  // namespace sluice::net
