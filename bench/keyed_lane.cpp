// What a sum of pairs costs an aggregator's lane and a rank, in nanoseconds for each key of the
// union, without ports and processes: one aggregator engine and the engines of all ranks take turns
// in one thread, and pass packets to each other in memory.
//
//   bench-keyed-lane ELEMENTS PAIRS random|zipf RANKS ITERATIONS [PAYLOAD_BYTES]
//
// PAIRS of ELEMENTS keys at each rank. A rank's time is from the call until the sums lie in order
// in its memory; the mean of all ranks. Prints a line for each iteration, and the medians.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <time.h>

#include "aggregator/engine/engine.hpp"
#include "bench/lib/peers/sparse/input.hpp"
#include "worker/engine/engine.hpp"

namespace {

using namespace sluice;

/// Of this thread: what else runs on its core is not counted.
double cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

/// Buffers of one size, in large pages as those of a daemon; never given back to the system.
class Blocks final : public BufferMemory {
 public:
  explicit Blocks(std::size_t bytes)
      : bytes_((sizeof(Block) + bytes + kAlignment - 1) / kAlignment * kAlignment) {}

  Buffer take(std::size_t size) {
    if (free_ == nullptr) grow();
    Block* const block = std::exchange(free_, free_->next);
    block->references = 1;
    return {*this, block, {reinterpret_cast<std::byte*>(block + 1), size}};
  }
  void add_reference(void* block) const override { ++static_cast<Block*>(block)->references; }
  void drop_reference(void* at) const override {
    auto* const block = static_cast<Block*>(at);
    if (--block->references == 0) block->next = std::exchange(free_, block);
  }
  std::size_t references(const void* block) const override {
    return static_cast<const Block*>(block)->references;
  }

 private:
  struct alignas(64) Block {
    Block* next = nullptr;
    std::size_t references = 0;
  };
  static constexpr std::size_t kAlignment = 64, kPage = std::size_t{2} << 20;

  void grow() {
    auto* const page = static_cast<std::byte*>(std::aligned_alloc(kPage, kPage));
    if (page == nullptr) throw std::bad_alloc();
    madvise(page, kPage, MADV_HUGEPAGE);
    for (std::size_t at = 0; at + bytes_ <= kPage; at += bytes_)
      free_ = new (page + at) Block{.next = free_};
  }

  const std::size_t bytes_;
  mutable Block* free_ = nullptr;
};

struct Datagram {
  Endpoint to;
  Buffer payload;
};

/// Keeps what an engine sends until it is taken.
class Outbox final : public KeepingSink {
 public:
  explicit Outbox(Blocks& blocks) : blocks_(blocks) {}
  Buffer allocate(std::size_t size) override { return blocks_.take(size); }
  void send(const Endpoint& to, Buffer payload) override {
    sent_.push_back({to, std::move(payload)});
  }
  Buffer send_and_keep(const Endpoint& to, Buffer payload) override {
    send(to, payload.share());
    return payload;
  }
  void take(std::vector<Datagram>& into) {
    into.clear();
    std::swap(into, sent_);
  }

 private:
  Blocks& blocks_;
  std::vector<Datagram> sent_;
};

constexpr std::uint16_t kAggregatorPort = 4747;

Endpoint endpoint_of(std::uint16_t udp_port) {
  return {.port_id = udp_port, .ipv4 = 0x0A000001, .udp_port = udp_port};
}

std::uint64_t unique() {
  static std::uint64_t last = 0;
  return last += 0x9E37'79B9'7F4A'7C15;
}

class Cluster {
 public:
  Cluster(std::uint16_t ranks, std::uint16_t payload_bytes)
      : blocks_(payload_bytes), lane_(aggregator_config(payload_bytes)), lane_out_(blocks_) {
    const Endpoint aggregator = endpoint_of(kAggregatorPort);
    for (std::uint16_t r = 0; r < ranks; ++r) {
      worker::EngineConfig config;
      config.job = 1;
      config.rank = Rank{r};
      config.ranks = ranks;
      config.payload_bytes = payload_bytes;
      config.unique = unique;
      outs_.push_back(std::make_unique<Outbox>(blocks_));
      ranks_.push_back(std::make_unique<worker::Engine>(config, std::span(&aggregator, 1)));
      ranks_.back()->start(now_, *outs_.back());
    }
    while (
        !all([](const worker::Engine& e) { return e.state() == worker::Engine::State::kActive; }))
      turn();
  }

  struct Cost {
    double aggregator_ns = 0, rank_ns = 0;  ///< the sum of all ranks'
    std::uint64_t packets = 0, bytes = 0;   ///< of results
  };

  /// One sum; `keys` and `rows` receive what the last rank got.
  Cost sum(const std::vector<worker::KeyedRequest>& requests, std::vector<std::uint64_t>& keys,
           std::vector<float>& rows) {
    cost_ = {};
    timed(cost_.rank_ns, [&] {
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        worker::OpRequest request{.collective = wire::Collective::kSparseAllReduce};
        request.keyed = requests[r];
        ranks_[r]->submit(request, now_, *outs_[r]);
      }
    });
    while (!all([](const worker::Engine& e) { return e.pending_ops() == 0; })) {
      turn();
      check_drops(lane_.counters().drops);
      for (const auto& engine : ranks_) check_drops(engine->counters().drops);
    }
    timed(cost_.rank_ns, [&] {
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const worker::KeyedSums& sums = *requests[r].sums;
        keys.resize(sums.size());
        rows.resize(sums.size());
        sums.merge(keys, std::as_writable_bytes(std::span(rows)));
      }
    });
    for (auto& engine : ranks_)
      for (const auto& completion : engine->take_completions())
        if (completion.error) throw *completion.error;
    return cost_;
  }

 private:
  static aggregator::EngineConfig aggregator_config(std::uint16_t payload_bytes) {
    aggregator::EngineConfig config;
    config.payload_bytes = payload_bytes;
    config.unique = unique;
    config.incarnation = unique();
    return config;
  }

  template <class F>
  static void timed(double& ns, const F& f) {
    const double begin = cpu_ns();
    f();
    ns += cpu_ns() - begin;
  }
  template <class F>
  bool all(const F& f) const {
    return std::ranges::all_of(ranks_, [&](const auto& engine) { return f(*engine); });
  }

  /// Nothing is lost, so no packet may be dropped.
  static void check_drops(const DropCounters& drops) {
    for (std::size_t i = 1; i < kDropReasonCount; ++i)
      if (const auto reason = static_cast<DropReason>(i); drops[reason] != 0)
        throw std::runtime_error("a packet was dropped: " + std::string(name(reason)));
  }

  void turn() {
    now_ += std::chrono::microseconds(20);
    timed(cost_.aggregator_ns, [&] {
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        outs_[r]->take(batch_);
        for (Datagram& each : batch_)
          lane_.receive(endpoint_of(static_cast<std::uint16_t>(r)), std::move(each.payload), now_,
                        lane_out_);
      }
      lane_.on_time(now_, lane_out_);
    });
    lane_out_.take(batch_);
    for (const Datagram& each : batch_) {
      ++cost_.packets;
      cost_.bytes += each.payload.bytes().size();
    }
    timed(cost_.rank_ns, [&] {
      for (Datagram& each : batch_)
        ranks_[each.to.udp_port]->receive(endpoint_of(kAggregatorPort), std::move(each.payload),
                                          now_, *outs_[each.to.udp_port]);
      for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->on_time(now_, *outs_[r]);
    });
  }

  Blocks blocks_;
  aggregator::Engine lane_;
  Outbox lane_out_;
  std::vector<std::unique_ptr<Outbox>> outs_;
  std::vector<std::unique_ptr<worker::Engine>> ranks_;
  std::vector<Datagram> batch_;
  Time now_{std::chrono::seconds(1)};
  Cost cost_;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

int run(const std::vector<std::string>& words) {
  const auto elements = static_cast<std::uint32_t>(std::stoul(words[0]));
  const std::size_t pairs = std::stoul(words[1]);
  const auto kind = words[2] == "zipf" ? sparse::Keys::kZipf : sparse::Keys::kRandom;
  const auto ranks = static_cast<std::uint16_t>(std::stoul(words[3]));
  const std::size_t iterations = std::stoul(words[4]);
  const auto payload = static_cast<std::uint16_t>(words.size() > 5 ? std::stoul(words[5]) : 1472);

  std::vector<std::vector<std::uint64_t>> keys(ranks);
  std::vector<std::vector<float>> values(ranks);
  std::vector<float> expected(elements);
  for (std::uint16_t r = 0; r < ranks; ++r)
    for (const sparse::Pair& pair : sparse::pairs_of(r, elements, pairs, kind, 1)) {
      keys[r].push_back(pair.index);
      values[r].push_back(pair.value);
      expected[pair.index] += pair.value;
    }
  Cluster cluster(ranks, payload);
  std::vector<worker::KeyedSums> sums(ranks);
  std::vector<double> of_aggregator, of_rank;
  std::vector<std::uint64_t> sum_keys;
  std::vector<float> sum_rows;
  for (std::size_t i = 0; i <= iterations; ++i) {
    std::vector<worker::KeyedRequest> requests(ranks);
    for (std::uint16_t r = 0; r < ranks; ++r)
      requests[r] = {.keys = keys[r],
                     .rows = reinterpret_cast<const std::byte*>(values[r].data()),
                     .key_bound = elements,
                     .result_bytes = std::size_t{1} << 40,
                     .sums = &sums[r]};
    const auto cost = cluster.sum(requests, sum_keys, sum_rows);
    const auto size = static_cast<double>(sum_keys.size());
    for (std::size_t k = 0; k < sum_keys.size(); ++k)
      if (sum_rows[k] != expected[sum_keys[k]] || (k > 0 && sum_keys[k] <= sum_keys[k - 1])) {
        std::fprintf(stderr, "wrong sum of key %zu\n", static_cast<std::size_t>(sum_keys[k]));
        return 1;
      }
    if (i == 0) continue;  // it warms up
    of_aggregator.push_back(cost.aggregator_ns / size);
    of_rank.push_back(cost.rank_ns / size / ranks);
    std::printf("%zu keys of the union, aggregator %.2f ns, rank %.2f ns; %.2f bytes of results\n",
                sum_keys.size(), of_aggregator.back(), of_rank.back(),
                static_cast<double>(cost.bytes) / size / ranks);
  }
  std::printf("median of %zu: aggregator %.2f ns, rank %.2f ns for each key of the union\n",
              iterations, median(of_aggregator), median(of_rank));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 5 || words.size() > 6) {
    std::fprintf(stderr,
                 "usage: bench-keyed-lane ELEMENTS PAIRS random|zipf RANKS ITERATIONS "
                 "[PAYLOAD_BYTES]\n");
    return 2;
  }
  try {
    return run(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-keyed-lane: %s\n", error.what());
    return 1;
  }
}
