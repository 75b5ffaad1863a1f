#include "common/net/capture.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <pcap/pcap.h>
#include <pthread.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"
#include "common/net/clock.hpp"

namespace sluice::net {
namespace {

constexpr unsigned kFramesUnderWay = 1024;  // copied and not written yet
constexpr auto kWriterPause = std::chrono::milliseconds(1);

/// With each copy.
struct Facts {
  Time at{};
  std::uint32_t length = 0;  // of the whole frame
};
static_assert(sizeof(Facts) % RTE_MBUF_PRIV_ALIGN == 0);

Facts& facts_of(rte_mbuf* copy) {
  return *static_cast<Facts*>(rte_mbuf_to_priv(copy));
}

void free_all(std::span<rte_mbuf*> frames) {
  if (!frames.empty()) rte_pktmbuf_free_bulk(frames.data(), static_cast<unsigned>(frames.size()));
}

}  // namespace

Capture::Capture(int file, const CaptureOptions& options)
    : options_(options),
      begun_(now()),
      epoch_(std::chrono::system_clock::now().time_since_epoch()) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    release();
    if (file_ == nullptr) ::close(file);
    throw Error(code, "cannot capture: " + why);
  };
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
    refuse(ErrorCode::kInvalidArgument, "what is to be written is no regular file");
  if (options.frame_bytes < 1 || options.frame_bytes > kMaxFrameBytes)
    refuse(ErrorCode::kInvalidArgument, "frame bytes = " + std::to_string(options.frame_bytes) +
                                            ": 1.." + std::to_string(kMaxFrameBytes) + " expected");
  const auto room = static_cast<std::uint16_t>(options.frame_bytes + RTE_PKTMBUF_HEADROOM);
  pool_ = rte_pktmbuf_pool_create("capture", kFramesUnderWay - 1, 0, sizeof(Facts), room,
                                  SOCKET_ID_ANY);
  if (pool_ != nullptr)
    ring_ = rte_ring_create("capture", kFramesUnderWay, SOCKET_ID_ANY, RING_F_SC_DEQ);
  if (ring_ == nullptr)
    refuse(ErrorCode::kUnavailable,
           rte_errno == EEXIST
               ? "another capture is under way"
               : std::to_string((kFramesUnderWay * std::size_t{room} >> 20) + 1) +
                     " MiB of packet memory are needed: capture fewer bytes of each frame, or "
                     "start the daemon with a larger memory-mib");
  format_ = pcap_open_dead_with_tstamp_precision(DLT_EN10MB, int{kMaxFrameBytes},
                                                 PCAP_TSTAMP_PRECISION_NANO);
  std::FILE* const stream = fdopen(file, "w");
  file_ = format_ != nullptr && stream != nullptr ? pcap_dump_fopen(format_, stream) : nullptr;
  if (file_ == nullptr) refuse(ErrorCode::kUnavailable, std::strerror(errno));
  writer_ = std::thread([this] { write(); });
}

Capture::~Capture() {
  finish();
  release();
}

void Capture::finish() {
  stop();
  stop_ = true;
  if (writer_.joinable()) writer_.join();
}

void Capture::release() {
  if (file_ != nullptr) pcap_dump_close(file_);
  if (format_ != nullptr) pcap_close(format_);
  rte_ring_free(ring_);
  rte_mempool_free(pool_);
}

void Capture::received(std::span<rte_mbuf* const> frames) {
  if (!captures()) return;
  std::array<rte_mbuf*, limits::kBurst> copies;
  keep(std::span(copies).first(copy(frames, copies)));
}

std::uint16_t Capture::send(std::uint16_t port, std::uint16_t queue, std::span<rte_mbuf*> frames) {
  // The port frees what it has sent: copies come first. They are in order, so those of frames that
  // it does not take are the last ones.
  std::array<rte_mbuf*, limits::kBurst> copies;
  const std::size_t made = captures() ? copy(frames, copies) : 0;
  const std::uint16_t sent =
      rte_eth_tx_burst(port, queue, frames.data(), static_cast<std::uint16_t>(frames.size()));
  const std::size_t kept = std::min<std::size_t>(made, sent);
  free_all(std::span(copies).subspan(kept, made - kept));
  keep(std::span(copies).first(kept));
  return sent;
}

/// Of as many frames as there is memory for, the first ones.
std::size_t Capture::copy(std::span<rte_mbuf* const> frames, std::span<rte_mbuf*> copies) {
  const Time at = now();
  std::size_t made = 0;
  while (made < frames.size()) {
    rte_mbuf* const copied =
        rte_pktmbuf_copy(frames[made], pool_, 0, static_cast<std::uint32_t>(options_.frame_bytes));
    if (copied == nullptr) break;
    facts_of(copied) = {at, frames[made]->pkt_len};
    copies[made++] = copied;
  }
  missed_.fetch_add(frames.size() - made, std::memory_order_relaxed);
  return made;
}

void Capture::keep(std::span<rte_mbuf*> copies) {
  const auto taken = rte_ring_mp_enqueue_burst(ring_, reinterpret_cast<void**>(copies.data()),
                                               static_cast<unsigned>(copies.size()), nullptr);
  missed_.fetch_add(copies.size() - taken, std::memory_order_relaxed);
  free_all(copies.subspan(taken));
}

void Capture::write() {
  pthread_setname_np(pthread_self(), "sluice-capture");
  for (;;) {
    const bool ends = stop_.load();
    if (options_.longest.count() != 0 && now() - begun_ >= options_.longest) stop();
    if (write_some()) continue;
    if (ends) return;
    std::this_thread::sleep_for(kWriterPause);
  }
}

/// False: there is nothing to write.
bool Capture::write_some() {
  std::array<rte_mbuf*, limits::kBurst> frames;
  const unsigned count = rte_ring_sc_dequeue_burst(ring_, reinterpret_cast<void**>(frames.data()),
                                                   frames.size(), nullptr);
  if (count == 0) return false;
  std::uint64_t written = written_.load(std::memory_order_relaxed);
  for (rte_mbuf* const frame : std::span(frames).first(count)) {
    if (failed_ || (options_.frames_max != 0 && written == options_.frames_max)) break;
    const Facts& facts = facts_of(frame);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(epoch_ + (facts.at - begun_));
    pcap_pkthdr header{};
    header.ts.tv_sec = seconds.count();
    header.ts.tv_usec = (epoch_ + (facts.at - begun_) - seconds).count();  // nanoseconds
    header.caplen = frame->data_len;
    header.len = facts.length;
    pcap_dump(reinterpret_cast<u_char*>(file_), &header, rte_pktmbuf_mtod(frame, const u_char*));
    ++written;
  }
  free_all(std::span(frames).first(count));
  // What pcap_dump() itself could not write, it does not tell.
  if (!failed_ && (pcap_dump_flush(file_) != 0 || std::ferror(pcap_dump_file(file_)) != 0)) {
    failed_ = true;
    const std::lock_guard lock(mutex_);
    error_ = std::strerror(errno);
  }
  if (!failed_) written_.store(written, std::memory_order_relaxed);
  if (failed_ || written == options_.frames_max) stop();
  return true;
}

Capture::Counters Capture::counters() const {
  const std::lock_guard lock(mutex_);
  return {.written = written_.load(std::memory_order_relaxed),
          .missed = missed_.load(std::memory_order_relaxed),
          .done = done_.load(std::memory_order_relaxed),
          .error = error_};
}

}  // namespace sluice::net
