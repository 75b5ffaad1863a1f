// N ranks of one job behind one port: every rank is a worker engine of its own with its own UDP
// port, all in this process, against a real aggregator.
//
//   local-cluster --workers 1 [--transport af_packet] -- many-ranks N [ELEMENTS [dense]]
//
// Each rank contributes to its own blocks and to some that it shares; the sums must be those of the
// rank order to the last bit. Exit status 0 only if they are. With `dense` each contributes to all,
// and streams, history and blocks are the defaults: SLUICE_MEMORY_MIB must have room for all ranks.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/idle.hpp"
#include "common/base/random_id.hpp"
#include "common/config/log.hpp"
#include "common/net/clock.hpp"
#include "worker/engine/engine.hpp"
#include "worker/loop/attachment.hpp"

namespace {

using namespace sluice;
using namespace std::chrono_literals;
using Engine = worker::Engine;

constexpr std::uint16_t kFirstUdpPort = 20'000;
constexpr std::uint32_t kBlock = 64;  // the unit of ownership, in elements
constexpr auto kTimeLimit = 120s;

bool is_dense = false;

struct RankState {
  std::vector<float> tensor;
  std::unique_ptr<Engine> engine;
  bool done = false;
};

/// Rank r has every block b with b % ranks == r, and every seventh one together with others.
bool owns(std::size_t rank, std::size_t block, std::size_t ranks) {
  return is_dense || block % ranks == rank || (block + rank) % 7 == 0;
}

float value(std::size_t rank, std::size_t element) {
  return 1.0F / static_cast<float>(1 + rank + 3 * element);  // sums depend on the order
}

std::vector<float> tensor_of(std::size_t rank, std::size_t ranks, std::size_t elements) {
  std::vector<float> tensor(elements);
  for (std::size_t i = 0; i < elements; ++i)
    if (owns(rank, i / kBlock, ranks)) tensor[i] = value(rank, i);
  return tensor;
}

std::vector<float> reference(std::size_t ranks, std::size_t elements) {
  std::vector<float> sums(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    bool first = true;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (!owns(r, i / kBlock, ranks)) continue;
      sums[i] = first ? value(r, i) : sums[i] + value(r, i);
      first = false;
    }
  }
  return sums;
}

worker::EngineConfig config_of(std::size_t rank, std::size_t ranks, std::uint16_t payload_bytes) {
  worker::EngineConfig config;
  config.job = 256;
  config.rank = Rank{static_cast<std::uint16_t>(rank)};
  config.ranks = static_cast<std::uint16_t>(ranks);
  if (!is_dense) {
    config.block_elements = kBlock;
    config.streams = 4;
    config.history = 4;
  }
  config.payload_bytes = std::min<std::uint16_t>(payload_bytes, 1472);
  config.unique = random_id;
  config.integrity = true;  // an aggregator on the network demands it
  return config;
}

class ManyRanks {
 public:
  ManyRanks(Attachment& attachment, std::size_t ranks, std::size_t elements)
      : attachment_(attachment), ranks_(ranks) {
    Endpoint aggregator = find();
    for (std::size_t r = 0; r < ranks; ++r) {
      aggregator.local_udp_port = static_cast<std::uint16_t>(kFirstUdpPort + r);
      attachment.io().listen(aggregator.local_udp_port);
      ranks_[r].tensor = tensor_of(r, ranks, elements);
      ranks_[r].engine = std::make_unique<Engine>(config_of(r, ranks, attachment.payload_bytes()),
                                                  std::span(&aggregator, 1));
    }
  }

  void run() {
    for (RankState& rank : ranks_) rank.engine->start(net::now(), attachment_.io());
    drive([](const RankState& rank) { return rank.engine->state() == Engine::State::kActive; });
    for (RankState& rank : ranks_) {
      worker::OpRequest request;
      request.input = reinterpret_cast<const std::byte*>(rank.tensor.data());
      request.output = reinterpret_cast<std::byte*>(rank.tensor.data());
      request.element_count = rank.tensor.size();
      rank.engine->submit(request, net::now(), attachment_.io());
    }
    drive([](const RankState& rank) { return rank.done; });
    for (RankState& rank : ranks_) rank.engine->leave(net::now(), attachment_.io());
    drive([](const RankState& rank) { return rank.engine->over(); });
  }

  std::size_t wrong(const std::vector<float>& sums) const {
    std::size_t count = 0;
    for (const RankState& rank : ranks_)
      count += std::memcmp(rank.tensor.data(), sums.data(), sums.size() * sizeof(float)) != 0;
    return count;
  }

 private:
  Endpoint find() {
    const Time deadline = after(net::now(), kTimeLimit);
    while (net::now() < deadline) {
      if (const auto found = attachment_.find(0, net::now())) return *found;
      attachment_.io().receive([](const Endpoint&, Buffer) {});
      attachment_.io().flush();
    }
    throw Error(ErrorCode::kAggregatorLost, "the aggregator is unreachable");
  }

  /// Turns the loop until `reached` holds for all ranks.
  template <class Reached>
  void drive(Reached reached) {
    const Time deadline = after(net::now(), kTimeLimit);
    Idle idle;
    while (!std::all_of(ranks_.begin(), ranks_.end(), reached)) {
      const Time now = net::now();
      if (now > deadline) throw Error(ErrorCode::kTimeout, "no end within two minutes");
      auto& io = attachment_.io();
      const std::size_t received = io.receive([&](const Endpoint& from, Buffer payload) {
        ranks_.at(from.local_udp_port - kFirstUdpPort)
            .engine->receive(from, std::move(payload), now, io);
      });
      for (RankState& rank : ranks_) {
        rank.engine->on_time(now, io);
        for (worker::Completion& completion : rank.engine->take_completions()) {
          if (completion.error) throw Error(*completion.error);
          rank.done = true;
        }
        if (rank.engine->failure()) throw Error(*rank.engine->failure());
      }
      io.flush();
      idle.work_done(received);
    }
  }

  Attachment& attachment_;
  std::vector<RankState> ranks_;
};

std::size_t number(const char* text) {
  std::size_t value = 0;
  const auto end = text + std::strlen(text);
  if (std::from_chars(text, end, value).ptr != end || value == 0)
    throw Error(ErrorCode::kInvalidArgument, std::string("not a positive number: ") + text);
  return value;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::size_t ranks = argc > 1 ? number(argv[1]) : 256;
  const std::size_t elements = argc > 2 ? number(argv[2]) : 100'003;
  is_dense = argc > 3 && std::strcmp(argv[3], "dense") == 0;
  const ContextOptions options = ContextOptions::from_environment();
  Attachment attachment(options, config::make_logger({.name = "many-ranks"}));
  ManyRanks job(attachment, ranks, elements);
  job.run();
  const std::size_t wrong = job.wrong(reference(ranks, elements));
  std::printf("%zu ranks behind one port, %zu elements: %zu ranks with wrong sums\n", ranks,
              elements, wrong);
  return wrong == 0 ? 0 : 1;
} catch (const sluice::Error& error) {
  std::fprintf(stderr, "many-ranks: %s\n", error.what());
  return 1;
}
