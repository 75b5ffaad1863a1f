// The steps of an op over hosts, without engines: what each of them sums is summed here, and what
// comes of it must be what the op gives without hosts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/catch.hpp"
#include "tests/unit/pairs_parts.hpp"
#include "tests/unit/rounds.hpp"
#include "worker/hierarchy/steps.hpp"

namespace hierarchy_steps_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace sluice::worker::hierarchy;
using wire::Collective;

namespace {

using Element = std::int32_t;
using Elements = std::vector<Element>;
using Counts = std::vector<std::uint64_t>;

constexpr Element kUntouched = -7;
constexpr std::uint16_t kBlock = 16;

Session session_of(std::uint16_t ranks) {
  Session session;
  session.ranks = ranks;
  session.streams = 4;
  session.block_elements = kBlock;
  session.payload_bytes = 1472;
  return session;
}

bool is_set(std::span<const std::uint64_t> blocks, std::uint64_t block) {
  return (blocks[block / 64] >> (block % 64) & 1) != 0;
}

/// Sums what the requests of some ranks hold, as an engine does: blocks of which it is told that
/// they are zero it does not read, nor writes where it is told that the zeros are there.
void sum(const std::vector<const OpRequest*>& of_rank) {
  const ElementRange whole{0, of_rank.front()->element_count};
  Elements sums(whole.end);
  std::vector<bool> is_nonzero(whole.end / kBlock + 1);
  for (const OpRequest* request : of_rank) {
    REQUIRE(request->element_count == whole.end);
    const ElementRange held = request->held.value_or(whole);
    REQUIRE((held.begin <= held.end && held.end <= whole.end));
    const auto* input = reinterpret_cast<const Element*>(request->input);
    for (std::uint64_t i = held.begin; i < held.end; ++i) {
      const bool is_told = !request->nonzero_blocks.empty();
      const auto read = is_told ? request->nonzero_blocks : request->searched_blocks;
      if (!read.empty() && !is_set(read, i / kBlock)) continue;
      sums[i] += input[i - held.begin];
      if (is_told || input[i - held.begin] != 0) is_nonzero[i / kBlock] = true;
    }
  }
  for (const OpRequest* request : of_rank) {
    auto* output = reinterpret_cast<Element*>(request->output);
    std::uint64_t last = 0;
    for (const ElementRange& range : request->wanted.value_or(std::vector{whole})) {
      REQUIRE((last <= range.begin && range.begin <= range.end && range.end <= whole.end));
      last = range.end;
      for (std::uint64_t i = range.begin; i < range.end; ++i, ++output)
        if (is_nonzero[i / kBlock] || !request->zeros_are_there) *output = sums[i];
    }
    if (!request->found_blocks) continue;
    for (std::uint64_t b = 0; b * kBlock < whole.end; ++b)
      if (is_nonzero[b]) request->found_blocks->nonzero[b / 64] |= std::uint64_t{1} << (b % 64);
  }
}

struct RankMemory {
  OpRequest request;
  Elements input, output;
};

std::uint64_t elements_of(const std::vector<ElementRange>& ranges) {
  std::uint64_t elements = 0;
  for (const ElementRange& range : ranges) elements += range.end - range.begin;
  return elements;
}

/// A rank's op, with what it holds drawn by rank and place alone.
RankMemory call(Collective collective, std::uint16_t root, std::uint16_t rank, std::uint16_t ranks,
                const Counts& counts, bool in_place) {
  RankMemory memory;
  OpRequest& request = memory.request;
  request.collective = collective;
  request.type = ElementType::kInt32;
  request.root = root;
  lay_out(request, {rank, ranks}, counts);
  const ElementRange whole{0, request.element_count};
  const ElementRange held = request.held.value_or(whole);
  for (std::uint64_t i = held.begin; i < held.end; ++i)
    memory.input.push_back(i / 16 % 3 == 0 ? 0 : static_cast<Element>(i * 31 + rank * 1009 + 1));
  memory.output.assign(elements_of(request.wanted.value_or(std::vector{whole})), kUntouched);
  if (in_place) memory.output = memory.input;
  request.output = reinterpret_cast<std::byte*>(memory.output.data());
  request.input = in_place ? request.output : reinterpret_cast<std::byte*>(memory.input.data());
  return memory;
}

struct Hosts {
  Placement placement;
  std::vector<std::unique_ptr<Steps>> steps = {};

  void gather() {
    for (std::uint16_t host = 0; host < placement.hosts(); ++host) {
      std::vector<const OpRequest*> requests;
      for (const Rank rank : placement.ranks_of(host)) {
        const Steps::OfHost& gather = steps[rank.value]->gather();
        REQUIRE(gather.parts.size() == placement.ranks_of(host).size());
        REQUIRE(gather.parts[placement.local_rank_of(rank)].held == gather.request.held);
        REQUIRE(gather.parts[placement.local_rank_of(rank)].wanted == gather.request.wanted);
        requests.push_back(&gather.request);
      }
      sum(requests);
    }
  }
  void between() {
    for (std::uint16_t rail = 0; rail < placement.rails(); ++rail) {
      std::vector<const OpRequest*> requests;
      for (const Rank rank : placement.rail(rail))
        requests.push_back(&steps[rank.value]->between().value());
      sum(requests);
    }
  }
  void spread() {
    for (std::uint16_t host = 0; host < placement.hosts(); ++host) {
      std::vector<const OpRequest*> requests;
      for (const Rank rank : placement.ranks_of(host))
        requests.push_back(&steps[rank.value]->spread().request);
      sum(requests);
    }
  }
};

/// Each rank is somewhere; ranks of a host need not be neighbours.
Placement draw_placement(std::mt19937_64& random, std::uint16_t ranks) {
  const std::uint64_t hosts = 1 + random() % ranks;
  std::vector<std::uint64_t> host_of(ranks);
  for (std::uint64_t& host : host_of) host = random() % (hosts + 1);  // 0: on one of its own
  return Placement(host_of);
}

Counts draw_counts(std::mt19937_64& random, Collective collective, std::uint16_t ranks) {
  std::size_t parts = 1;
  if (collective == Collective::kAllToAll)
    parts = std::size_t{ranks} * ranks;
  else if (collective == Collective::kReduceScatter || collective == Collective::kAllGather ||
           collective == Collective::kGather || collective == Collective::kScatter)
    parts = ranks;
  Counts counts(parts);
  for (std::uint64_t& count : counts) count = random() % 4 == 0 ? 0 : random() % 200;
  return counts;
}

void check(std::mt19937_64& random, Collective collective) {
  const auto ranks = static_cast<std::uint16_t>(1 + random() % 9);
  const auto root = static_cast<std::uint16_t>(random() % ranks);
  Counts counts = draw_counts(random, collective, ranks);
  if (collective == Collective::kBarrier) counts = {0};
  const bool in_place = collective == Collective::kAllReduce && random() % 2 == 0;
  const std::uint32_t chunks = 1 + random() % 4;
  std::vector<RankMemory> direct, by_hosts;
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    direct.push_back(call(collective, root, rank, ranks, counts, in_place));
    by_hosts.push_back(call(collective, root, rank, ranks, counts, in_place));
  }
  std::vector<const OpRequest*> all;
  for (const RankMemory& memory : direct) all.push_back(&memory.request);
  sum(all);

  Hosts hosts{draw_placement(random, ranks)};
  for (Chunk chunk{.of = chunks}; chunk.number < chunks; ++chunk.number) {
    hosts.steps.clear();
    for (std::uint16_t rank = 0; rank < ranks; ++rank)
      hosts.steps.push_back(std::make_unique<Steps>(by_hosts[rank].request, counts, hosts.placement,
                                                    Rank{rank}, session_of(ranks), chunk));
    hosts.gather();
    hosts.between();
    hosts.spread();
  }
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    CAPTURE(name(collective), ranks, rank, hosts.placement.hosts(), hosts.placement.rails(),
            chunks);
    REQUIRE(by_hosts[rank].output == direct[rank].output);
    if (!in_place) REQUIRE(by_hosts[rank].input == direct[rank].input);
  }
}

TEST_CASE("every collective gives over hosts what it gives without them") {
  std::mt19937_64 random(36);
  for (int round = 0; round < test::rounds(300); ++round)
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter,
          Collective::kBroadcast, Collective::kAllGather, Collective::kGather, Collective::kScatter,
          Collective::kAllToAll, Collective::kBarrier})
      check(random, collective);
}

TEST_CASE("shares are whole blocks, and all blocks but their last are as long") {
  const std::vector<std::uint64_t> hosts{7, 7, 7, 9, 9, 9};
  std::vector<bool> has(100);
  for (std::uint16_t rank = 0; rank < 6; ++rank) {
    RankMemory memory = call(Collective::kAllReduce, 0, rank, 6, {16 * 99 + 5}, false);
    const Steps steps(memory.request, Counts{16 * 99 + 5}, Placement(hosts), Rank{rank},
                      session_of(6));
    const ElementRange held = steps.between()->held.value();
    CHECK(held.begin % 16 == 0);
    CHECK((held.end % 16 == 0 || held.end == 16 * 99 + 5));
    CHECK(steps.blocks() >= 33);
    CHECK(steps.blocks() <= 34);
    for (std::uint64_t block = held.begin / 16; block * 16 < held.end; ++block) has[block] = true;
  }
  CHECK(std::all_of(has.begin(), has.end(), [](bool b) { return b; }));
}

TEST_CASE("a long tensor has chunks, of which each rail has enough, and not too many") {
  const Placement placement{std::vector<std::uint64_t>{7, 7, 9, 9}};
  OpRequest request;
  const auto chunks = [&](std::uint64_t bytes_of_rail) {
    lay_out(request, {0, 4}, Counts{bytes_of_rail / sizeof(float) * placement.rails()});
    return chunks_of(request, placement, 1000);
  };
  CHECK(chunks(0) == 1);
  CHECK(chunks(1996) == 1);
  CHECK(chunks(2000) == 2);
  CHECK(chunks(4000) == 4);
  CHECK(chunks(1 << 20) == kMaxChunks);
  request.type = ElementType::kInt32;
  request.reduction = Reduction::kAverage;  // which is not summed by hosts
  CHECK(chunks(1 << 20) == 1);
}

TEST_CASE("hosts that cut a tensor into other chunks disagree") {
  const Placement placement{std::vector<std::uint64_t>{7, 7, 9, 9}};
  RankMemory memory = call(Collective::kAllReduce, 0, 0, 4, {1000}, false);
  std::set<std::uint16_t> layouts;
  for (std::uint32_t of = 1; of <= kMaxChunks; ++of)
    for (std::uint32_t number = 0; number < of; ++number)
      layouts.insert(Steps(memory.request, Counts{1000}, placement, Rank{0}, session_of(4),
                           {.number = number, .of = of})
                         .between()
                         ->layout);
  CHECK(layouts.size() == kMaxChunks * (kMaxChunks + 1) / 2);
}

TEST_CASE("an average of floats is divided on the host, and only what travels is encoded") {
  const std::vector<std::uint64_t> hosts{7, 7, 9, 9};
  std::vector<float> tensor(100);
  OpRequest request;
  request.reduction = Reduction::kAverage;
  request.encoding = Encoding::kInt8;
  request.rounding_seed = 3;
  lay_out(request, {0, 4}, Counts{100});
  request.input = request.output = reinterpret_cast<std::byte*>(tensor.data());
  const Steps steps(request, Counts{100}, Placement(hosts), Rank{0}, session_of(4));
  CHECK(steps.gather().request.reduction == Reduction::kAverage);
  CHECK(steps.gather().request.encoding == Encoding::kNone);
  CHECK(steps.between()->reduction == Reduction::kSum);
  CHECK(steps.between()->encoding == Encoding::kInt8);
  CHECK(steps.between()->rounding_seed == 3);
  OpRequest of_sums = request;
  of_sums.reduction = Reduction::kSum;
  const Steps sums(of_sums, Counts{100}, Placement(hosts), Rank{0}, session_of(4));
  CHECK(steps.between()->layout != sums.between()->layout);  // or hosts could disagree unnoticed
  CHECK(steps.spread().request.reduction == Reduction::kSum);
  CHECK(steps.spread().request.encoding == Encoding::kNone);
}

TEST_CASE("what is not summed by hosts moves nothing in its steps") {
  const std::vector<std::uint64_t> hosts{7, 7, 9, 9};
  Elements tensor(100, 5);
  OpRequest request;
  request.type = ElementType::kInt32;
  request.reduction = Reduction::kAverage;
  lay_out(request, {2, 4}, Counts{100});
  request.input = request.output = reinterpret_cast<std::byte*>(tensor.data());
  CHECK(!sums_by_hosts(request));
  const Steps steps(request, Counts{100}, Placement(hosts), Rank{2}, session_of(4));
  for (const OpRequest* step :
       {&steps.gather().request, &*steps.between(), &steps.spread().request}) {
    CHECK(elements_of(step->wanted.value()) == 0);
    if (step != &steps.gather().request) CHECK(step->held.value() == ElementRange{});
  }
  CHECK(steps.gather().parts[0].held == ElementRange{});
  CHECK(steps.between()->reduction == Reduction::kAverage);  // or ranks would not disagree
  request.reduction = Reduction::kSum;
  CHECK(sums_by_hosts(request));
}

// ------------------------------------------------------------------------------------------ pairs
struct Pairs {
  std::vector<std::uint64_t> keys = {};
  std::vector<float> rows = {};
  KeyedSums sums = {};
  OpRequest request = {};
};

/// What all ranks ask for alike.
OpRequest draw_request(std::mt19937_64& random) {
  OpRequest request;
  request.collective = Collective::kSparseAllReduce;
  if (random() % 3 == 0) request.reduction = Reduction::kAverage;
  KeyedRequest& keyed = request.keyed.emplace();
  keyed.key_bound = 1 + random() % 3000;
  keyed.row_elements = static_cast<std::uint16_t>(1 + random() % 3);
  keyed.threshold = random() % 2 == 0 ? 0 : static_cast<double>(random() % 300);
  keyed.result_bytes = std::size_t{1} << 30;
  return request;
}

/// Often none, or all in a few of the ranges.
void draw(std::mt19937_64& random, const OpRequest& request, Pairs& pairs) {
  pairs.request = request;
  KeyedRequest& keyed = *pairs.request.keyed;
  const std::uint64_t density = random() % 5 == 0 ? 0 : random() % 101;
  const std::uint64_t end = random() % 2 == 0 ? keyed.key_bound : keyed.key_bound / 5;
  for (std::uint64_t key = 0; key < end; ++key) {
    if (random() % 100 >= density) continue;
    pairs.keys.push_back(key);
    for (unsigned i = 0; i < keyed.row_elements; ++i)
      pairs.rows.push_back(static_cast<float>(random() % 1000) / 7);
  }
  keyed.keys = pairs.keys;
  keyed.rows = reinterpret_cast<const std::byte*>(pairs.rows.data());
  keyed.sums = &pairs.sums;
}

struct HostsOfPairs {
  Placement placement;
  std::vector<std::unique_ptr<Steps>> steps = {};

  HostsOfPairs(const Placement& places, const std::deque<Pairs>& of_rank) : placement(places) {
    const std::uint16_t ranks = placement.ranks();
    for (std::uint16_t rank = 0; rank < ranks; ++rank)
      steps.push_back(std::make_unique<Steps>(of_rank[rank].request, Counts{}, placement,
                                              Rank{rank}, session_of(ranks)));
  }
  template <class Half>
  void move_on_hosts(Half half) {
    for (std::uint16_t host = 0; host < placement.hosts(); ++host) {
      std::vector<host::MoveSequence*> ranks;
      for (const Rank rank : placement.ranks_of(host))
        ranks.push_back((steps[rank.value].get()->*half)());
      move_all(ranks, 0);
    }
  }
  void gather() {
    move_on_hosts(&Steps::merge);
    for (auto& of_rank : steps) of_rank->end_gather();
  }
  void between() {
    for (std::uint16_t rail = 0; rail < placement.rails(); ++rail) {
      std::vector<const OpRequest*> requests;
      for (const Rank rank : placement.rail(rail))
        requests.push_back(&steps[rank.value]->between().value());
      sum_pairs<float>(requests);
    }
    for (auto& of_rank : steps) of_rank->end_between();
  }
  void spread() { move_on_hosts(&Steps::spread_pairs); }
};

/// Lowest rank first on each host, then the hosts; an average is divided before these are added.
SumsByKey<float> sums_of(const Placement& placement, const std::deque<Pairs>& of_rank) {
  SumsByKey<float> sums;
  const OpRequest& request = of_rank[0].request;
  const bool is_average = request.reduction == Reduction::kAverage;
  for (std::uint16_t host = 0; host < placement.hosts(); ++host) {
    SumsByKey<float> of_host;
    for (const Rank rank : placement.ranks_of(host))
      add_pairs(*of_rank[rank.value].request.keyed, of_host);
    for (auto& [key, row] : of_host) {
      auto& sum = sums[key];
      sum.resize(row.size());
      for (std::size_t i = 0; i < row.size(); ++i)
        sum[i] += is_average ? row[i] / static_cast<float>(placement.ranks()) : row[i];
    }
  }
  return sums;
}

TEST_CASE("sums of pairs over hosts are those of the hosts, in order, on all ranks") {
  std::mt19937_64 random(37);
  for (int round = 0; round < test::rounds(300); ++round) {
    const auto ranks = static_cast<std::uint16_t>(1 + random() % 9);
    const Placement placement = draw_placement(random, ranks);
    const OpRequest request = draw_request(random);
    std::deque<Pairs> of_rank(ranks);
    for (Pairs& pairs : of_rank) draw(random, request, pairs);
    SumsByKey<float> expected = sums_of(placement, of_rank);
    const std::size_t rejected = std::erase_if(expected, [&](const auto& sum) {
      return *std::ranges::max_element(sum.second) < request.keyed->threshold;
    });
    HostsOfPairs hosts(placement, of_rank);
    if (placement.hosts() == 1) continue;  // it needs no steps
    hosts.gather();
    hosts.between();
    hosts.spread();
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(ranks, rank, placement.hosts(), placement.rails());
      REQUIRE(!hosts.steps[rank]->spread_pairs()->finish());
      const KeyedSums& sums = of_rank[rank].sums;
      REQUIRE(are(sums, request.keyed->row_elements, expected));
      REQUIRE(sums.rejected[0] == rejected);
    }
  }
}

TEST_CASE("more sums of pairs than a rank takes are an error of that rank") {
  std::mt19937_64 random(38);
  OpRequest request = draw_request(random);
  request.keyed->key_bound = 1000;
  request.keyed->row_elements = 1;
  request.keyed->threshold = 0;
  std::deque<Pairs> of_rank(4);
  for (Pairs& pairs : of_rank) draw(random, request, pairs);
  of_rank[2].keys.resize(1000);
  std::iota(of_rank[2].keys.begin(), of_rank[2].keys.end(), std::uint64_t{0});
  of_rank[2].rows.assign(1000, 1);
  of_rank[2].request.keyed->keys = of_rank[2].keys;
  of_rank[2].request.keyed->rows = reinterpret_cast<const std::byte*>(of_rank[2].rows.data());
  of_rank[0].request.keyed->result_bytes = 999 * (8 + 4);
  const std::vector<std::uint64_t> host_of{7, 7, 9, 9};
  HostsOfPairs hosts(Placement(host_of), of_rank);
  hosts.gather();
  // Its peers want what it carries.
  CHECK(hosts.steps[0]->between()->keyed->result_bytes > 1000 * (8 + 4));
  hosts.between();
  hosts.spread();
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    const auto error = hosts.steps[rank]->spread_pairs()->finish();
    CHECK(error.has_value() == (rank == 0));
    if (error) CHECK(std::string(error->what()).find("the sums have 1000 keys") == 0);
  }
}

TEST_CASE(
    "a share of pairs is a range of keys, the same on all hosts, and what travels is encoded") {
  const std::vector<std::uint64_t> host_of{7, 7, 9, 9, 9};
  std::mt19937_64 random(39);
  OpRequest request = draw_request(random);
  request.reduction = Reduction::kAverage;
  request.encoding = Encoding::kInt8;
  request.rounding_seed = 3;
  request.keyed->key_bound = 256 * 7;
  request.keyed->row_elements = 1;
  request.keyed->threshold = 5;
  std::deque<Pairs> of_rank(5);
  for (Pairs& pairs : of_rank) draw(random, request, pairs);
  HostsOfPairs hosts(Placement(host_of), of_rank);
  CHECK(hosts.placement.rails() == 2);
  hosts.gather();
  for (std::uint16_t rank = 0; rank < 5; ++rank) {
    const auto& between = hosts.steps[rank]->between();
    REQUIRE(between.has_value() == (rank < 4));
    if (!between) continue;
    for (const std::uint64_t key : between->keyed->keys)
      CHECK((key < std::uint64_t{256 * 4}) == (rank % 2 == 0));
    CHECK(between->reduction == Reduction::kSum);
    CHECK(between->layout != request.layout);  // or hosts could disagree unnoticed
    CHECK(between->encoding == Encoding::kInt8);
    CHECK(between->rounding_seed == 3);
    CHECK(between->keyed->threshold == 5);
    CHECK(between->keyed->key_bound == 256 * 7);
  }
}

TEST_CASE("pairs that are not summed by hosts move nothing in its steps") {
  const std::vector<std::uint64_t> host_of{7, 7, 9, 9};
  std::mt19937_64 random(40);
  OpRequest request = draw_request(random);
  request.type = ElementType::kInt32;
  request.reduction = Reduction::kAverage;
  std::deque<Pairs> of_rank(4);
  for (Pairs& pairs : of_rank) draw(random, request, pairs);
  HostsOfPairs hosts(Placement(host_of), of_rank);
  hosts.gather();
  for (const auto& steps : hosts.steps) {
    CHECK(steps->between()->keyed->keys.empty());
    CHECK(steps->between()->reduction == Reduction::kAverage);  // or ranks would not disagree
  }
  hosts.between();
  hosts.spread();
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    of_rank[rank].sums.rejected[3] = 36;  // as who sums has left it
    REQUIRE(!hosts.steps[rank]->spread_pairs()->finish());
    CHECK(of_rank[rank].sums.rejected[3] == 36);
  }
}

TEST_CASE("hosts are numbered by their lowest ranks, and the one with the fewest sets the rails") {
  const std::vector<std::uint64_t> told{0, 5, 8, 5, 0, 8, 8};
  const Placement placement{told};
  CHECK(placement.hosts() == 4);
  CHECK(placement.ranks_of(1) == std::vector{Rank{1}, Rank{3}});
  CHECK(placement.ranks_of(2) == std::vector{Rank{2}, Rank{5}, Rank{6}});
  CHECK(placement.host_of(Rank{4}) == 3);
  CHECK(placement.local_rank_of(Rank{6}) == 2);
  CHECK(placement.rails() == 1);
  CHECK(placement.rail(0) == std::vector{Rank{0}, Rank{1}, Rank{2}, Rank{4}});
}

}  // namespace

}  // namespace hierarchy_steps_tests
