// libFuzzer target of the aggregator's engine under members that lie. One host plays all ranks of
// jobs of its own, with valid tokens: it knows what the aggregator knows of them, so that what it
// says is deep in the protocol and a little wrong: packets of every kind, of rounds before and
// after the running one, with other shapes and columns, leaving in the middle, resuming with any
// progress, silent ranks.
// An honest job in the same engine must not notice; and nothing that a member says may be read,
// written or awaited beyond its own job.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/protocol/abort_info.hpp"
#include "tests/fuzz/forge.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/job.hpp"

namespace sluice::fuzz {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kHonestJob = 1;
constexpr std::uint32_t kFirstHostileJob = 2;
constexpr std::size_t kHostileJobs = 2;
constexpr std::size_t kRanksMost = 4;
constexpr std::uint64_t kSeed = 30;
constexpr std::size_t kBuffersMost = 1500;
constexpr std::array<double, 4> kThresholds{0, 50, std::numeric_limits<double>::infinity(),
                                            std::numeric_limits<double>::quiet_NaN()};

constexpr std::uint16_t kPayloadBytes = 600;  // of the jobs of hostile members

aggregator::EngineConfig config_of(Input& input) {
  aggregator::EngineConfig config;
  config.streams = static_cast<std::uint16_t>(1 + input.below(3));
  config.streams_max = 8;
  config.history = static_cast<std::uint8_t>(2u << input.below(2));
  config.payload_bytes = 700;
  config.jobs_max = 1 + kHostileJobs;
  config.buffers_max = kBuffersMost;
  config.liveness_timeout = milliseconds(2000);
  config.formation_timeout = milliseconds(3000);
  config.straggler_warning = milliseconds(20);
  return config;
}

/// A job all of whose ranks are one liar's.
struct HostileJob {
  struct ForgedRank {
    std::uint64_t nonce = 0;
    std::uint64_t serial = 0;
    std::uint64_t token = 0;
    std::uint64_t former_token = 0;
    std::uint64_t keep_alive = 0;
    Cookie cookie{};
  };
  struct Stream {  // as far as was heard
    std::uint64_t round = 0;
    std::vector<BlockIndex> wanted;  // by column; empty or all none: the round opens an op
    std::uint64_t horizon = kNoKey;  // of a keyed op that runs
    std::uint64_t renewal = kNoKey;  // runs that end before it are renewed
    bool opens() const {
      return horizon == kNoKey &&
             std::all_of(wanted.begin(), wanted.end(), [](BlockIndex b) { return b == kNoBlock; });
    }
    std::array<std::uint64_t, kRanksMost> following{};  // as was said last
  };
  std::uint32_t id = 0;
  std::uint16_t ranks = 0;
  std::uint64_t elements = 0;  // of each op
  WireType pairs_type = ElementType::kInt32;
  WireType blocks_type = ElementType::kInt32;
  double threshold = 0;
  wire::Welcome session{};
  std::vector<ForgedRank> forged_ranks;
  std::vector<Stream> streams;
};

class Target {
 public:
  explicit Target(Input& input)
      : input_(input), world_(config_of(input), kSeed), honest_(world_, kHonestJob, 2, kSeed) {
    require(honest_.settle([&] { return honest_.joined(); }), "the honest job forms");
    for (std::size_t i = 0; i < kHostileJobs; ++i) {
      hostile_[i].id = static_cast<std::uint32_t>(kFirstHostileJob + i);
      hostile_[i].ranks = static_cast<std::uint16_t>(1 + input_.below(kRanksMost));
      hostile_[i].elements = 4 * input_.pick(std::array<std::uint64_t, 4>{400, 1000, 3000, 1});
      const std::uint64_t pairs_type = (hostile_[i].elements / 4 + hostile_[i].ranks) % 11;
      hostile_[i].pairs_type = pairs_type == 9    ? WireType(Encoding::kInt8)
                               : pairs_type == 10 ? WireType(Encoding::kInt4)
                                                  : static_cast<ElementType>(1 + pairs_type);
      constexpr std::array kBlocksTypes{WireType(ElementType::kInt32), WireType(Encoding::kInt8),
                                        WireType(Encoding::kInt4)};
      hostile_[i].blocks_type = kBlocksTypes[(hostile_[i].elements / 4 + hostile_[i].ranks) % 3];
      if (hostile_[i].blocks_type.is_scaled()) --hostile_[i].elements;  // the last block: odd
      hostile_[i].threshold = kThresholds[hostile_[i].ranks % kThresholds.size()];
      hostile_[i].forged_ranks.resize(hostile_[i].ranks);
      join(hostile_[i]);
    }
  }

  void run() {
    for (unsigned acts = 0; !input_.empty(); ++acts) {
      act();
      if (acts % 64 == 63) honest_works();
    }
    honest_works();
    require(!honest_.failed(), "another's job goes on whatever the members of others say");
    for (auto& caller : world_.callers) caller->check_returned();
  }

 private:
  static constexpr std::uint8_t kKeyedActs = 0xC0;

  void act() {
    HostileJob& job = hostile_[input_.below(kHostileJobs)];
    const std::size_t rank = input_.below(job.ranks);
    const std::uint8_t choice = input_.byte();
    if (choice >= kKeyedActs) return act_keyed(job, rank, choice);
    switch (choice % 16) {
      case 0:
        return join(job);
      case 1:
        return join_one(job, rank, input_.one_in(2));
      case 2:
        leave(job, rank);
        while (input_.one_in(2)) pass(job);
        return;
      case 3:
        return resynchronise(job);
      case 4:
      case 5:
        return ack(job, rank);
      case 6:
        return keep_alive(job, rank);
      case 7:
        return pass(job);
      case 8:
        return any_bytes(job, rank);
      case 9:
        world_.engine->on_disconnect(endpoint_of(job.id, 0).port_id, world_.now, world_.sink);
        return listen();
      case 10:
      case 11:
      case 12:
        return advance(job, false);
      default:
        return data(job, rank, pick_stream(job), true);
    }
  }

  void act_keyed(HostileJob& job, std::size_t rank, std::uint8_t choice) {
    switch (choice % 8) {
      case 0:
      case 1:
        world_.sink.pool->dry = input_.one_in(2);
        return;
      case 2:
      case 3:
      case 4:
        return pairs(job, rank, pick_stream(job), true);
      default:
        return advance(job, true);
    }
  }

  void honest_works() {
    world_.sink.pool->dry = false;
    for (std::size_t r = 0; r < honest_.ranks(); ++r)  // of blocks, and of pairs
      for (int op = 0; op < 3; ++op) honest_.submit(r);
    require(honest_.settle([&] { return !honest_.busy(); }), "another job's ops end");
    listen();
  }

  // ----------------------------------------------------------------------------- what it hears
  void send(const HostileJob& job, std::size_t rank, Datagram bytes) {
    seal(bytes);
    world_.arrive({endpoint_of(job.id, static_cast<unsigned>(rank)), kAggregator,
                   std::make_shared<Datagram>(std::move(bytes))});
    listen();
  }
  template <class T>
  void send_packet(const HostileJob& job, std::size_t rank, const T& packet) {
    send(job, rank, datagram_of(packet));
  }

  /// Takes what the aggregator has sent to the liar's ranks off the wire.
  void listen() {
    std::erase_if(world_.flights, [&](const Flight& flight) {
      const auto job = std::find_if(hostile_.begin(), hostile_.end(), [&](const HostileJob& j) {
        return flight.to.ipv4 >> 16 == j.id;
      });
      if (job == hostile_.end()) return false;
      hear(*job, *flight.datagram);
      return true;
    });
  }
  void hear(HostileJob& job, const Datagram& bytes) {
    Packet packet;
    require(Packet::parse(bytes, packet) == DropReason::kNone, "answers are well formed");
    using wire::Kind;
    if (packet.kind() == Kind::kChallenge) {
      const auto& challenge = packet.as<wire::Challenge>();
      incarnation_ = challenge.incarnation;
      for (auto& forged : job.forged_ranks)
        if (forged.nonce == challenge.nonce)
          forged.serial = challenge.serial, forged.cookie = challenge.challenge;
    } else if (packet.kind() == Kind::kWelcome) {
      const auto& welcome = packet.as<wire::Welcome>();
      if (job.session.epoch != welcome.epoch) job.streams.assign(welcome.streams, {});
      job.session = welcome;
      for (auto& forged : job.forged_ranks)
        if (forged.nonce == welcome.nonce && forged.token != welcome.token)
          forged.former_token = forged.token, forged.token = welcome.token;
    } else if (packet.kind() == Kind::kResult) {
      const auto& result = packet.as<wire::Result>();
      HostileJob::Stream& stream = stream_of(job, result.delivery.stream);
      stream.round = result.round + 1;
      stream.wanted.clear();
      for (const wire::Column& column : packet.columns())
        stream.wanted.push_back(BlockIndex{column.next});
      stream.horizon = kNoKey;
    } else if (packet.kind() == Kind::kKeyValueResult) {
      const auto& result = packet.as<wire::KeyValueResult>();
      HostileJob::Stream& stream = stream_of(job, result.result.delivery.stream);
      stream.round = result.result.round + 1;
      stream.wanted.clear();
      stream.horizon = result.next;
      const std::size_t room = keyed_result_room({.payload_bytes = kPayloadBytes});
      stream.renewal = renewal_bound(result.horizon, result.next, result.run_bytes, room);
    } else if (packet.kind() == Kind::kStatus) {
      const auto& status = packet.as<wire::Status>();
      HostileJob::Stream& stream = stream_of(job, status.delivery.stream);
      if (stream.round != status.round) {
        stream = {};
        stream.round = status.round;
      }
    }
  }
  HostileJob::Stream& stream_of(HostileJob& job, std::size_t stream) {
    require(stream < job.streams.size(), "only streams of the session are spoken of");
    return job.streams[stream];
  }

  // ---------------------------------------------------------------------------------- joining
  void join(HostileJob& job) {
    const bool resumes = input_.one_in(3);
    for (std::size_t r = 0; r < job.ranks; ++r) join_one(job, r, resumes);
  }
  void join_one(HostileJob& job, std::size_t rank, bool resumes) {
    HostileJob::ForgedRank& forged = job.forged_ranks[rank];
    forged.nonce = ++nonces_;
    auto hello = wire::make<wire::Hello>(job.id);
    hello.nonce = forged.nonce;
    hello.rank = static_cast<std::uint16_t>(rank);
    send_packet(job, rank, hello);
    auto join = wire::make<wire::Join>(job.id);
    join.nonce = forged.nonce;
    join.incarnation = incarnation_;
    join.serial = forged.serial;
    join.challenge = forged.cookie;
    join.rank = static_cast<std::uint16_t>(rank);
    join.world_size = job.ranks;
    join.block_elements = 4;
    join.payload_bytes = kPayloadBytes;
    join.shards = 1;
    join.flags = resumes ? 0 : wire::kJoinNoProgress;
    join.streams = resumes ? 2 : 0;
    join.history = resumes ? 4 : 0;
    join.generation = resumes ? std::uint64_t{77} : std::uint64_t{0};
    if (input_.one_in(4)) join.generation = job.session.generation, join.epoch = job.session.epoch;
    send_packet(job, rank, join);
  }

  // ------------------------------------------------------------------------------ what it says
  wire::MemberHeader member(const HostileJob& job, std::size_t rank, wire::MemberHeader header) {
    header.token = job.forged_ranks[rank].token;
    if (input_.one_in(16)) header.token = job.forged_ranks[rank].former_token;
    header.rank = static_cast<std::uint16_t>(rank);
    header.stream = pick_stream(job);
    return header;
  }
  std::uint16_t pick_stream(const HostileJob& job) {
    return static_cast<std::uint16_t>(input_.below(job.streams.size()));
  }
  /// About the round that runs.
  std::uint64_t near_round(const HostileJob& job, std::size_t stream) {
    const std::uint64_t running = stream < job.streams.size() ? job.streams[stream].round : 0;
    const std::uint8_t choice = input_.byte();
    return choice < 0xc0 ? running : running + (choice & 7u) - 4;
  }

  void leave(const HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::Leave>(job.id);
    packet.member = member(job, rank, packet.member);
    packet.abort = input_.one_in(8);
    if (packet.abort != 0)
      lie_why(packet);
    else if (rank % 2 != 0)
      set_cause(packet, {.reason = wire::AbortReason::kRankLeft, .value_a = rank});
    send_packet(job, rank, packet);
  }
  void lie_why(wire::Leave& packet) {
    packet.reason = static_cast<std::uint16_t>(input_.below(wire::kLastAbortReason + 1u));
    packet.field = static_cast<std::uint16_t>(input_.below(wire::kLastField + 1u));
    packet.rank_a = input_.one_in(8) ? input_.number<std::uint16_t>() : input_.byte() & 3u;
    packet.rank_b = input_.byte() & 3u;
    packet.value_a = input_.number<std::uint16_t>();
    packet.value_b = input_.byte();
    packet.op = input_.byte();
  }
  /// All ranks tell of one stream, near each other or not.
  void resynchronise(const HostileJob& job) {
    const std::uint16_t stream = pick_stream(job);
    const std::uint8_t lowest = input_.byte();
    for (std::size_t r = 0; r < job.ranks; ++r) {
      auto packet = wire::make<wire::Sync>(job.id);
      packet.member = member(job, r, packet.member);
      packet.member.stream = stream;
      packet.applied = lowest + input_.below(4);
      if (!input_.one_in(16)) send_packet(job, r, packet);
    }
  }
  void ack(const HostileJob& job, std::size_t rank) {
    if (input_.one_in(2)) {
      auto packet = wire::make<wire::Ack>(job.id);
      packet.member = member(job, rank, packet.member);
      packet.position = near_round(job, packet.member.stream);
      return send_packet(job, rank, packet);
    }
    auto packet = wire::make<wire::Probe>(job.id);
    packet.member = member(job, rank, packet.member);
    packet.position = near_round(job, packet.member.stream);
    packet.have = input_.byte();
    send_packet(job, rank, packet);
  }
  void keep_alive(HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::KeepAlive>(job.id);
    packet.member = member(job, rank, packet.member);
    if (input_.one_in(8)) packet.member.rank = input_.byte();
    packet.number = ++job.forged_ranks[rank].keep_alive;
    packet.newest_beacon = input_.byte() % 64;
    packet.beacons_received = input_.one_in(2) ? ~0u : input_.byte();
    send_packet(job, rank, packet);
  }
  /// Whoever is to live keeps living, while stragglers and time-outs are looked for.
  void pass(HostileJob& job) {
    if (input_.one_in(2))
      for (std::size_t r = 0; r < job.ranks; ++r) keep_alive(job, r);
    world_.pass(std::min<Duration>(pick_step(input_), milliseconds(60)));
    listen();
    while (!world_.flights.empty()) {  // the bystanders': nothing of theirs is lost
      world_.deliver(0);
      listen();
    }
  }
  void any_bytes(const HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::Ack>(job.id);
    packet.member = member(job, rank, packet.member);
    const Known nothing;
    send(job, rank, edited(input_, nothing, forge_upstream(input_, packet.member)));
  }

  /// Some ranks contribute to a stream's next rounds as honest ones would; so they end, mostly, and
  /// the other ranks fall behind, until they are awaited.
  void advance(HostileJob& job, bool keyed) {
    if (job.streams.empty()) return;
    const std::uint16_t stream = pick_stream(job);
    const std::uint8_t who = input_.byte();
    for (std::size_t rounds = 1 + input_.below(8); rounds > 0; --rounds) {
      const HostileJob::Stream& state = job.streams[stream];
      const bool all = state.opens();
      if (!all) keyed = state.horizon != kNoKey;
      for (std::size_t r = 0; r < job.ranks; ++r) {
        if (keyed && (all || state.following[r] < state.renewal))
          pairs(job, r, stream, false);
        else if (!keyed && (all || (who >> r & 1) != 0))
          data(job, r, stream, false);
      }
    }
  }

  /// A contribution, to the running round mostly; with `lies` one thing or another is wrong.
  void data(HostileJob& job, std::size_t rank, std::uint16_t stream, bool lies) {
    if (job.streams.empty()) return;
    const HostileJob::Stream& state = job.streams[stream];
    const auto lie = [&](std::size_t n) { return lies && input_.one_in(n); };
    const std::uint64_t op = lie(8) ? input_.byte() : 0;
    const std::uint64_t elements = lie(8) ? input_.byte() : job.elements;
    const auto geometry =
        Geometry::make(elements, job.blocks_type, 4, 600, job.session.streams, op);
    const bool opening = lie(4) ? !state.opens() : state.opens();
    wire::Shape shape = wire::shape_of(geometry);
    if (lie(8)) shape.columns = static_cast<std::uint8_t>(1 + input_.below(wire::kMaxColumns));

    const auto owned = input_.number<std::uint16_t>();  // columns, by their lowest bits: few bytes
    std::vector<wire::Column> columns(shape.columns);
    std::size_t payload = 0;
    for (std::uint8_t c = 0; c < shape.columns; ++c) {
      wire::Column& column = columns[c];
      BlockIndex current = kNoBlock;
      if (opening && c < geometry.columns) current = geometry.first_index(StreamId{stream}, c);
      if (!opening && c < state.wanted.size()) current = state.wanted[c];
      column.index = lie(16) ? std::uint32_t{input_.byte()} : current.value;
      column.next = kNoBlock.value;
      if (column.index >= geometry.blocks || (owned >> c % 16 & 1) == 0) continue;
      column.flags = wire::kColumnPresent;
      payload += geometry.bytes_of(BlockIndex{column.index});
      if (job.blocks_type.is_scaled()) column.scale = scale(lie(8));
      column.next = geometry.following(BlockIndex{column.index}).value;
      if (lie(16)) column.next = input_.byte();
    }

    Datagram bytes(wire::block_packet_bytes<wire::Data>(shape.columns, opening, payload));
    auto packet = wire::BlockPacket<wire::Data>::begin(bytes, job.id, shape.columns, opening);
    packet.fixed.member = member(job, rank, packet.fixed.member);
    packet.fixed.member.stream = stream;
    packet.fixed.round = lies ? near_round(job, stream) : state.round;
    packet.fixed.op = op;
    packet.fixed.shape = shape;
    packet.fixed.flags = static_cast<std::uint8_t>((opening ? wire::kDataOpening : 0) |
                                                   (lie(4) ? wire::kDataAsk : 0));
    if (opening) describe(job, *packet.descriptor, lies);
    std::copy(columns.begin(), columns.end(), packet.columns.begin());
    send(job, rank, std::move(bytes));
  }

  /// The same of pairs: some keys from the horizon on, and which one follows.
  void pairs(HostileJob& job, std::size_t rank, std::uint16_t stream, bool lies) {
    if (job.streams.empty()) return;
    HostileJob::Stream& state = job.streams[stream];
    const auto lie = [&](std::size_t n) { return lies && input_.one_in(n); };
    const std::uint64_t op = lie(8) ? input_.byte() : 0;
    const std::uint64_t key_bound = lie(8) ? 1u + input_.byte() : job.elements;
    const Session session{
        .ranks = job.ranks, .streams = job.session.streams, .payload_bytes = kPayloadBytes};
    const auto geometry = KeyedGeometry::make(key_bound, 1, job.pairs_type, session, op);
    const bool opening = lie(4) ? !state.opens() : state.opens();

    std::uint64_t horizon = opening ? 0 : state.horizon;
    if (lie(8)) horizon = input_.byte();
    // Which keys, and how many: few bytes tell.
    const std::uint8_t choice = input_.byte();
    const std::uint8_t value = input_.byte();
    const std::size_t most = choice >> 6 == 3 ? 400 : 40u * (choice >> 6);
    const RunFormat format = geometry->format();
    const std::uint64_t bound = geometry->local_bound(geometry->place_of(StreamId{stream}));
    std::vector<std::uint64_t> keys;
    for (std::uint64_t key = horizon; key < bound && keys.size() <= most; key += 1u + value % 64u)
      if ((choice >> format.chunk_of(key) % 4 & 1) == 0) keys.push_back(key);  // else another's
    if (!keys.empty() && lie(16)) keys.back() += input_.byte();
    const bool goes_on = keys.size() > most;
    if (goes_on && !format.is_scaled()) keys.pop_back();
    std::vector<std::byte> run;
    std::uint64_t following = kNoKey;
    if (!keys.empty()) {
      const RunPlan plan = plan_run(keys, 440, format, goes_on);
      run.resize(plan.bytes, std::byte{value});
      std::byte* out = write_keys(plan.coding, keys, run);
      for (std::size_t i = 0; format.is_scaled() && i < plan.coding.keys;) {
        std::size_t end = i + 1;
        while (end < plan.coding.keys && format.chunk_of(keys[end]) == format.chunk_of(keys[i]))
          ++end;
        put_scale(out, lie(32) ? std::int16_t{200} : static_cast<std::int16_t>(value));
        out += format.rows_bytes(end - i);
        i = end;
      }
      if (plan.coding.keys < keys.size())
        following = format.first_key_of(format.chunk_of(keys[plan.coding.keys]));
      else if (goes_on)
        following = std::min(keys.back() + 1u + value % 64u, bound - 1);
      if (following != kNoKey && !format.is_scaled() && plan.coding.keys < keys.size())
        following = keys[plan.coding.keys];
      if (!run.empty() && lie(16)) run[input_.byte() % run.size()] ^= std::byte{input_.byte()};
    }
    if (lie(8)) following = input_.one_in(2) ? input_.byte() : kNoKey;
    state.following[rank] = following;

    auto packet = wire::make<wire::KeyValueData>(job.id);
    packet.data.member = member(job, rank, packet.data.member);
    packet.data.member.stream = stream;
    packet.data.round = lies ? near_round(job, stream) : state.round;
    packet.data.op = op;
    packet.data.shape = wire::shape_of(*geometry);
    if (lie(16)) packet.data.shape.columns = input_.byte() % 9u;
    packet.data.flags = static_cast<std::uint8_t>((opening ? wire::kDataOpening : 0) |
                                                  (lie(4) ? wire::kDataAsk : 0));
    packet.horizon = horizon;
    packet.following = following;
    packet.run_bytes = static_cast<std::uint32_t>(run.size());
    if (lie(16)) packet.run_bytes = input_.number<std::uint32_t>() % (300u << 10);
    Datagram bytes = datagram_of(packet);
    if (opening) {
      wire::Descriptor descriptor;
      descriptor.collective = static_cast<std::uint8_t>(wire::Collective::kSparseAllReduce);
      descriptor.op_type = static_cast<std::uint8_t>(job.pairs_type.element());
      descriptor.reduction = static_cast<std::uint8_t>(Reduction::kSum);
      if (lie(8)) descriptor.reduction = static_cast<std::uint8_t>(1 + input_.below(8));
      descriptor.begin = std::bit_cast<std::uint64_t>(job.threshold);
      const auto described = datagram_of(descriptor);
      bytes.insert(bytes.end(), described.begin(), described.end());
    }
    bytes.insert(bytes.end(), run.begin(), run.end());
    send(job, rank, std::move(bytes));
  }
  /// Of all that a scaled block may have, the least and the largest too; or any.
  std::int16_t scale(bool any) {
    if (any) return static_cast<std::int16_t>(input_.number<std::uint16_t>());
    constexpr std::array<std::int16_t, 5> kScales{0, WireType::kLeastScale, 121,
                                                  WireType::kNotFinite, -1};
    return input_.pick(kScales);
  }

  void describe(const HostileJob& job, wire::Descriptor& descriptor, bool lies) {
    using wire::Collective;
    descriptor.collective = static_cast<std::uint8_t>(Collective::kAllReduce);
    if (lies && input_.one_in(4))
      descriptor.collective = static_cast<std::uint8_t>(1 + input_.below(9));
    descriptor.op_type = static_cast<std::uint8_t>(job.blocks_type.element());
    descriptor.reduction = static_cast<std::uint8_t>(Reduction::kSum);
    if (job.blocks_type.is_scaled()) descriptor.rounding_seed = job.ranks % 2;
    if (!lies || !input_.one_in(4)) return;
    descriptor.flags = wire::kWantsPart;
    descriptor.begin = input_.number<std::uint64_t>();
    descriptor.count = input_.number<std::uint64_t>();
    descriptor.stride = input_.number<std::uint64_t>();
  }

  Input& input_;
  World world_;
  HonestJob honest_;
  std::array<HostileJob, kHostileJobs> hostile_;
  std::uint64_t nonces_ = 1000;
  std::uint64_t incarnation_ = 0;
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Input input(data, size);
  sluice::fuzz::Target(input).run();
  return 0;
}
