// Frames of this process's ports into a file that Wireshark and tcpdump read (by libpcap): also
// where no kernel sees them. Threads that poll copy what passes into a ring, and never wait; a
// thread of its own writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "common/base/time.hpp"

struct pcap;
struct pcap_dumper;
struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

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

  /// Takes over `file`, an open descriptor of a regular file. One at a time in a process. Throws
  /// Error: kInvalidArgument if it is none, kUnavailable without memory.
  Capture(int file, const CaptureOptions& options);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// What a burst has brought.
  void received(std::span<rte_mbuf* const> frames);
  /// rte_eth_tx_burst, of a burst at most: what the port takes of the frames is captured.
  std::uint16_t send(std::uint16_t port, std::uint16_t queue, std::span<rte_mbuf*> frames);

  void stop() { done_.store(true, std::memory_order_relaxed); }
  /// Once no other thread uses it any more: writes the rest.
  void finish();
  Counters counters() const;

 private:
  bool captures() const { return !done_.load(std::memory_order_relaxed); }
  std::size_t copy(std::span<rte_mbuf* const> frames, std::span<rte_mbuf*> copies);
  void keep(std::span<rte_mbuf*> copies);
  void write();
  bool write_some();
  void release();

  const CaptureOptions options_;
  const Time begun_;
  const Duration epoch_;  // when that was, by the clock on the wall
  rte_mempool* pool_ = nullptr;
  rte_ring* ring_ = nullptr;
  pcap* format_ = nullptr;
  pcap_dumper* file_ = nullptr;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> missed_{0};
  std::atomic<bool> done_{false};
  std::atomic<bool> stop_{false};  // the thread
  bool failed_ = false;            // its own
  mutable std::mutex mutex_;
  std::string error_;  // guarded by mutex_
  std::thread writer_;
};

}  // namespace sluice::net
