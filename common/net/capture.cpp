#include "common/net/capture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

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
#include "common/memory/thread_without_signals.hpp"
#include "common/net/clock.hpp"

namespace sluice::net {
namespace {

constexpr unsigned kFramesUnderWay = 1024;  // copied and not yet written
constexpr auto kWriterPause = std::chrono::milliseconds(1);
constexpr auto kEndTimeLimit =
    std::chrono::seconds(1);  // for a file that accepts nothing, at the end

/// Stored with each copy.
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

/// What the writer and the other threads share.
struct Capture::State {
  State(int descriptor, const CaptureOptions& with) : options(with), file(descriptor) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void make_memory();
  void run();
  bool is_late() const { return options.longest.count() != 0 && now() - begun >= options.longest; }

  const CaptureOptions options;
  const Time begun = now();
  // The same moment on the wall clock.
  const Duration epoch = std::chrono::system_clock::now().time_since_epoch();
  rte_mempool* pool = nullptr;
  rte_ring* ring = nullptr;
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> missed{0};
  std::atomic<bool> done{false};
  std::atomic<bool> ends{false};  // the writer must end
  std::mutex mutex;
  std::condition_variable finished;
  bool is_finished = false;  // guarded by mutex, and so are the following
  std::string error;

 private:
  void open();
  void write();
  bool write_some();
  void fail(const std::string& why);

  // Used by the writer only.
  const int file;
  pcap* format = nullptr;
  pcap_dumper* dump = nullptr;
  bool failed = false;
};

Capture::State::~State() {
  rte_ring_free(ring);
  rte_mempool_free(pool);
}

void Capture::State::make_memory() {
  if (options.frame_bytes < 1 || options.frame_bytes > kMaxFrameBytes)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot capture: frame bytes = " + std::to_string(options.frame_bytes) + ": 1.." +
                    std::to_string(kMaxFrameBytes) + " expected");
  const auto room = static_cast<std::uint16_t>(options.frame_bytes + RTE_PKTMBUF_HEADROOM);
  pool = rte_pktmbuf_pool_create("capture", kFramesUnderWay - 1, 0, sizeof(Facts), room,
                                 SOCKET_ID_ANY);
  if (pool != nullptr)
    ring = rte_ring_create("capture", kFramesUnderWay, SOCKET_ID_ANY, RING_F_SC_DEQ);
  if (ring != nullptr) return;
  throw Error(ErrorCode::kUnavailable,
              "cannot capture: " +
                  (rte_errno == EEXIST
                       ? std::string("another capture is under way")
                       : std::to_string((kFramesUnderWay * std::size_t{room} >> 20) + 1) +
                             " MiB of packet memory are needed: capture fewer bytes of each frame, "
                             "or start the daemon with a larger memory-mib"));
}

Capture::Capture(int file, const CaptureOptions& options)
    : state_(std::make_shared<State>(file, options)) {
  const auto of_writer = [state = state_] { state->run(); };
  try {
    state_->make_memory();
  } catch (const Error&) {
    state_->done = state_->ends = true;
    thread_without_signals(of_writer).detach();  // the thread closes the file
    throw;
  }
  thread_without_signals(of_writer).detach();
}

Capture::~Capture() {
  finish();
  std::unique_lock lock(state_->mutex);
  state_->finished.wait_for(lock, kEndTimeLimit, [this] { return state_->is_finished; });
}

bool Capture::captures() const {
  return !state_->done.load(std::memory_order_relaxed);
}

void Capture::stop() {
  state_->done.store(true, std::memory_order_relaxed);
}

void Capture::finish() {
  stop();
  state_->ends = true;
}

bool Capture::is_finished() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_finished;
}

void Capture::received(std::span<rte_mbuf* const> frames) {
  if (!captures()) return;
  std::array<rte_mbuf*, limits::kBurst> copies;
  keep(std::span(copies).first(copy(frames, copies)));
}

std::uint16_t Capture::send(std::uint16_t port, std::uint16_t queue, std::span<rte_mbuf*> frames) {
  // The port frees what it has sent, so copies are made first. They are in order: the copies of
  // frames that it does not accept are the last ones.
  std::array<rte_mbuf*, limits::kBurst> copies;
  const std::size_t made = captures() ? copy(frames, copies) : 0;
  const std::uint16_t sent =
      rte_eth_tx_burst(port, queue, frames.data(), static_cast<std::uint16_t>(frames.size()));
  const std::size_t kept = std::min<std::size_t>(made, sent);
  free_all(std::span(copies).subspan(kept, made - kept));
  keep(std::span(copies).first(kept));
  return sent;
}

/// Copies the first frames, as many as there is memory for.
std::size_t Capture::copy(std::span<rte_mbuf* const> frames, std::span<rte_mbuf*> copies) {
  const Time at = now();
  std::size_t made = 0;
  while (made < frames.size()) {
    rte_mbuf* const copied = rte_pktmbuf_copy(
        frames[made], state_->pool, 0, static_cast<std::uint32_t>(state_->options.frame_bytes));
    if (copied == nullptr) break;
    facts_of(copied) = {at, frames[made]->pkt_len};
    copies[made++] = copied;
  }
  state_->missed.fetch_add(frames.size() - made, std::memory_order_relaxed);
  return made;
}

void Capture::keep(std::span<rte_mbuf*> copies) {
  const auto taken =
      rte_ring_mp_enqueue_burst(state_->ring, reinterpret_cast<void**>(copies.data()),
                                static_cast<unsigned>(copies.size()), nullptr);
  state_->missed.fetch_add(copies.size() - taken, std::memory_order_relaxed);
  free_all(copies.subspan(taken));
}

void Capture::State::run() {
  pthread_setname_np(pthread_self(), "sluice-capture");
  if (ring != nullptr) {
    open();
    write();
  }
  if (dump != nullptr)
    pcap_dump_close(dump);
  else
    ::close(file);
  if (format != nullptr) pcap_close(format);
  const std::lock_guard lock(mutex);
  is_finished = true;
  finished.notify_all();
}

void Capture::State::fail(const std::string& why) {
  failed = true;
  done = true;
  const std::lock_guard lock(mutex);
  error = why;
}

void Capture::State::open() {
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
    return fail("what is to be written is no regular file");
  format = pcap_open_dead_with_tstamp_precision(DLT_EN10MB, int{kMaxFrameBytes},
                                                PCAP_TSTAMP_PRECISION_NANO);
  std::FILE* const stream = fdopen(file, "w");
  dump = format != nullptr && stream != nullptr ? pcap_dump_fopen(format, stream) : nullptr;
  if (dump == nullptr) fail(std::strerror(errno));
}

void Capture::State::write() {
  for (;;) {
    const bool is_last = ends.load();
    if (is_late()) done = true;
    if (write_some()) continue;
    if (is_last) return;
    std::this_thread::sleep_for(kWriterPause);
  }
}

/// Returns false if there is nothing to write.
bool Capture::State::write_some() {
  std::array<rte_mbuf*, limits::kBurst> frames;
  const unsigned count = rte_ring_sc_dequeue_burst(ring, reinterpret_cast<void**>(frames.data()),
                                                   frames.size(), nullptr);
  if (count == 0) return false;
  std::uint64_t count_written = written.load(std::memory_order_relaxed);
  for (rte_mbuf* const frame : std::span(frames).first(count)) {
    if (failed || (options.frames_max != 0 && count_written == options.frames_max)) break;
    const Facts& facts = facts_of(frame);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(epoch + (facts.at - begun));
    pcap_pkthdr header{};
    header.ts.tv_sec = seconds.count();
    header.ts.tv_usec = (epoch + (facts.at - begun) - seconds).count();  // nanoseconds
    header.caplen = frame->data_len;
    header.len = facts.length;
    pcap_dump(reinterpret_cast<u_char*>(dump), &header, rte_pktmbuf_mtod(frame, const u_char*));
    ++count_written;
  }
  free_all(std::span(frames).first(count));
  // pcap_dump() does not report that a write failed.
  if (!failed && (pcap_dump_flush(dump) != 0 || std::ferror(pcap_dump_file(dump)) != 0))
    fail(std::strerror(errno));
  if (!failed) written.store(count_written, std::memory_order_relaxed);
  if (failed || count_written == options.frames_max) done = true;
  return true;
}

Capture::Counters Capture::counters() const {
  // The writer may be blocked in a write.
  if (state_->is_late()) state_->done.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(state_->mutex);
  return {.written = state_->written.load(std::memory_order_relaxed),
          .missed = state_->missed.load(std::memory_order_relaxed),
          .done = state_->done.load(std::memory_order_relaxed),
          .error = state_->error};
}

}  // namespace sluice::net
