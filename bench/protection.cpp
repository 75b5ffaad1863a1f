// The cost of protecting a packet: CRC32C, the tag of a handshake, and AES-GCM of a session,
// compared with a plain read of the same bytes; for one packet that stays in the L1 cache and for
// packets that come from memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/protocol/build.hpp"
#include "common/protocol/secret.hpp"

namespace {

using namespace sluice;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSizes[] = {100, 1472, 8972};
constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;  // more than any cache
constexpr auto kTimePerRun = std::chrono::milliseconds(40);
constexpr int kRuns = 9;

volatile std::uint64_t sink;

/// Packets of `size` bytes, one after another.
class Packets {
 public:
  Packets(std::size_t size, std::size_t total)
      : size_(size), bytes_(std::max(size, total / size * size)) {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    for (std::size_t at = 0; at < bytes_.size(); at += size) {
      const auto header = wire::header_of(wire::Kind::kData, 7, size);
      std::memcpy(&bytes_[at], &header, sizeof header);
    }
  }

  std::span<std::byte> next() {
    at_ = at_ + size_ >= bytes_.size() ? 0 : at_ + size_;
    return {&bytes_[at_], size_};
  }

 private:
  std::size_t size_;
  std::size_t at_ = 0;
  std::vector<std::byte> bytes_;
};

/// The median of some runs, in nanoseconds per packet.
template <class F>
double ns_per_packet(Packets& packets, const F& f) {
  constexpr int kBatch = 256;
  std::vector<double> runs;
  for (int run = 0; run <= kRuns; ++run) {
    std::uint64_t count = 0;
    const auto start = Clock::now();
    auto end = start;
    for (; end - start < kTimePerRun; end = Clock::now(), count += kBatch)
      for (int i = 0; i < kBatch; ++i) f(packets.next());
    const double ns = std::chrono::duration<double, std::nano>(end - start).count();
    if (run > 0) runs.push_back(ns / static_cast<double>(count));  // the first one warms up
  }
  std::nth_element(runs.begin(), runs.begin() + kRuns / 2, runs.end());
  return runs[kRuns / 2];
}

void read_words(std::span<std::byte> packet) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + sizeof sum <= packet.size(); i += sizeof sum) {
    std::uint64_t word = 0;
    std::memcpy(&word, packet.data() + i, sizeof word);
    sum += word;
  }
  sink = sum;
}

/// 0 if the kernel does not say.
double cpu_ghz() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);)
    if (line.rfind("cpu MHz", 0) == 0) return std::stod(line.substr(line.find(':') + 1)) / 1000;
  return 0;
}

struct Way {
  const char* name;
  Protection with;
};

void measure(const char* where, std::size_t size, std::size_t total, const Key& key) {
  Packets packets(size, total);
  Sealer authenticates(key, false), encrypts(key, true);
  const double ghz = cpu_ghz();
  const double plain = ns_per_packet(packets, read_words);
  const auto row = [&](const char* name, double ns) {
    std::printf("%-7s %6zu  %-20s %9.1f %8.0f %8.2f %7.1f\n", where, size, name, ns, ns * ghz,
                static_cast<double>(size) / ns, ns / plain);
  };
  row("read", plain);
  for (const Way& way : {Way{"crc32c", {true, nullptr}},
                         {"handshake", {false, &key}},
                         {"authenticated", {.sealer = &authenticates}},
                         {"encrypted", {.sealer = &encrypts}}})
    row(way.name, ns_per_packet(packets, [&](std::span<std::byte> p) { protect(p, way.with); }));
}

}  // namespace

int main() {
  const Key key = handshake_key(Secret("a secret for the benchmark"), 7);
  std::printf("%-7s %6s  %-20s %9s %8s %8s %7s\n", "where", "bytes", "what", "ns", "cycles", "GB/s",
              "ratio");
  for (const std::size_t size : kSizes) measure("cache", size, size, key);
  for (const std::size_t size : kSizes) measure("memory", size, kMemoryBytes, key);
}
