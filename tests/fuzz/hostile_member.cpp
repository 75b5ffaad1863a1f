// libFuzzer target of the aggregator's engine under members that lie. One host plays all ranks of
// jobs of its own, with valid tokens: it knows what the aggregator knows of them, so that what it
// says is deep in the protocol and a little wrong: packets of every kind, of rounds before and
// after the running one, with other shapes and columns, leaving in the middle, resuming with any
// progress, silent ranks. An honest job in the same engine must not notice; and nothing that a
// member says may be read, written or awaited beyond its own job.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  struct Seat {
    std::uint64_t nonce = 0;
    std::uint64_t serial = 0;
    std::uint64_t token = 0;
    std::uint64_t former_token = 0;
    std::uint64_t keep_alive = 0;
    Cookie cookie{};
  };
  std::uint32_t id = 0;
  std::uint16_t ranks = 0;
  wire::Welcome session{};
  std::vector<Seat> seats;
  std::vector<std::uint64_t> rounds;  // running, by stream, as far as was heard
  std::vector<wire::Column> columns;  // wanted in column 0..: of the newest result
  std::uint64_t op = 0;
};

class Target {
 public:
  explicit Target(Input& input)
      : input_(input), world_(config_of(input), kSeed), honest_(world_, kHonestJob, 2, kSeed) {
    require(honest_.settle([&] { return honest_.joined(); }), "the honest job forms");
    for (std::size_t i = 0; i < kHostileJobs; ++i) {
      hostile_[i].id = static_cast<std::uint32_t>(kFirstHostileJob + i);
      hostile_[i].ranks = static_cast<std::uint16_t>(1 + input_.below(kRanksMost));
      hostile_[i].seats.resize(hostile_[i].ranks);
      join(hostile_[i]);
    }
  }

  void run() {
    for (unsigned acts = 0; !input_.empty(); ++acts) {
      act();
      if (acts % 16 == 15) honest_works();
    }
    honest_works();
    require(!honest_.failed(), "a bystander's job goes on whatever the members of others say");
    for (auto& caller : world_.callers) caller->check_returned();
  }

 private:
  void act() {
    HostileJob& job = hostile_[input_.below(kHostileJobs)];
    const std::size_t rank = input_.below(job.ranks);
    switch (input_.below(16)) {
      case 0:
        return join(job);
      case 1:
        return join_one(job, rank, input_.one_in(2));
      case 2:
        return leave(job, rank);
      case 3:
        return sync(job, rank);
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
        world_.engine->on_hang_up(endpoint_of(job.id, 0).port_id, world_.now, world_.sink);
        return listen();
      case 10:  // all ranks, as honest ones would
      case 11:
        for (std::size_t r = 0; r < job.ranks; ++r) data(job, r, false);
        return;
      default:
        return data(job, rank, true);
    }
  }

  void honest_works() {
    for (std::size_t r = 0; r < honest_.ranks(); ++r) honest_.submit(r);
    require(honest_.settle([&] { return !honest_.busy(); }), "a bystander's ops end");
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
      for (auto& seat : job.seats)
        if (seat.nonce == challenge.nonce)
          seat.serial = challenge.serial, seat.cookie = challenge.challenge;
    } else if (packet.kind() == Kind::kWelcome) {
      const auto& welcome = packet.as<wire::Welcome>();
      if (job.session.epoch != welcome.epoch) job.rounds.assign(welcome.streams, 0), job.op = 0;
      job.session = welcome;
      for (auto& seat : job.seats)
        if (seat.nonce == welcome.nonce && seat.token != welcome.token)
          seat.former_token = seat.token, seat.token = welcome.token;
    } else if (packet.kind() == Kind::kResult) {
      const auto& result = packet.as<wire::Result>();
      round(job, result.delivery.stream) = result.round + 1;
      job.columns.assign(packet.columns().begin(), packet.columns().end());
    } else if (packet.kind() == Kind::kStatus) {
      const auto& status = packet.as<wire::Status>();
      round(job, status.delivery.stream) = status.round;
    }
  }
  std::uint64_t& round(HostileJob& job, std::size_t stream) {
    require(stream < job.rounds.size(), "only streams of the session are spoken of");
    return job.rounds[stream];
  }

  // ---------------------------------------------------------------------------------- joining
  void join(HostileJob& job) {
    const bool resumes = input_.one_in(3);
    for (std::size_t r = 0; r < job.ranks; ++r) join_one(job, r, resumes);
  }
  void join_one(HostileJob& job, std::size_t rank, bool resumes) {
    HostileJob::Seat& seat = job.seats[rank];
    seat.nonce = ++nonces_;
    auto hello = wire::make<wire::Hello>(job.id);
    hello.nonce = seat.nonce;
    hello.rank = static_cast<std::uint16_t>(rank);
    send_packet(job, rank, hello);
    auto join = wire::make<wire::Join>(job.id);
    join.nonce = seat.nonce;
    join.incarnation = incarnation_;
    join.serial = seat.serial;
    join.challenge = seat.cookie;
    join.rank = static_cast<std::uint16_t>(rank);
    join.world_size = job.ranks;
    join.block_elements = 4;
    join.payload_bytes = 600;
    join.shards = 1;
    join.flags = resumes ? 0 : wire::kJoinVirgin;
    join.streams = resumes ? 2 : 0;
    join.history = resumes ? 4 : 0;
    join.generation = resumes ? std::uint64_t{77} : std::uint64_t{0};
    if (input_.one_in(4)) join.generation = job.session.generation, join.epoch = job.session.epoch;
    send_packet(job, rank, join);
  }

  // ------------------------------------------------------------------------------ what it says
  wire::MemberHeader member(const HostileJob& job, std::size_t rank, wire::MemberHeader header) {
    header.token = job.seats[rank].token;
    if (input_.one_in(16)) header.token = job.seats[rank].former_token;
    header.rank = static_cast<std::uint16_t>(rank);
    if (!job.rounds.empty())
      header.stream = static_cast<std::uint16_t>(input_.below(job.rounds.size()));
    return header;
  }
  /// About the round that runs.
  std::uint64_t near_round(const HostileJob& job, std::size_t stream) {
    const std::uint64_t running = stream < job.rounds.size() ? job.rounds[stream] : 0;
    const std::uint8_t choice = input_.byte();
    return choice < 0xc0 ? running : running + (choice & 7u) - 4;
  }

  void leave(const HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::Leave>(job.id);
    packet.member = member(job, rank, packet.member);
    packet.abort = input_.one_in(8);
    if (packet.abort != 0) packet.reason = static_cast<std::uint16_t>(input_.below(17));
    packet.shard_or_rank = input_.byte();
    send_packet(job, rank, packet);
  }
  void sync(const HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::Sync>(job.id);
    packet.member = member(job, rank, packet.member);
    packet.applied = input_.byte() % 8u;
    send_packet(job, rank, packet);
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
    packet.number = ++job.seats[rank].keep_alive;
    send_packet(job, rank, packet);
  }
  /// Whoever is to live keeps living, while stragglers and time-outs are looked for.
  void pass(HostileJob& job) {
    if (input_.one_in(2))
      for (std::size_t r = 0; r < job.ranks; ++r) keep_alive(job, r);
    world_.pass(std::min<Duration>(pick_step(input_), milliseconds(60)));
    listen();
  }
  void any_bytes(const HostileJob& job, std::size_t rank) {
    auto packet = wire::make<wire::Ack>(job.id);
    packet.member = member(job, rank, packet.member);
    const Known nothing;
    send(job, rank, edited(input_, nothing, forge_upstream(input_, packet.member)));
  }

  /// A contribution to the running round: of an op that all ranks name alike, mostly.
  void data(HostileJob& job, std::size_t rank, bool lies) {
    if (job.rounds.empty()) return;
    const auto stream = static_cast<std::uint16_t>(input_.below(job.rounds.size()));
    const std::uint64_t op = job.op + (lies && input_.one_in(8) ? 1 : 0);
    const std::uint64_t elements = 4u * (1 + input_.pick(std::array<unsigned, 4>{40, 40, 2, 200}));
    const auto geometry =
        Geometry::make(elements, ElementType::kInt32, 4, 600, job.session.streams, op);
    wire::Shape shape = wire::shape_of(geometry);
    if (lies && input_.one_in(8))
      shape.columns = static_cast<std::uint8_t>(1 + input_.below(wire::kMaxColumns));
    const std::uint64_t at = lies ? near_round(job, stream) : job.rounds[stream];
    const bool opening = lies ? input_.one_in(2) : job.columns.empty() || all_done(job);
    const auto column_of = [&](std::uint8_t c) {
      wire::Column column;
      const BlockIndex first = geometry.uses(StreamId{stream}) && c < geometry.columns
                                   ? geometry.first_index(StreamId{stream}, c)
                                   : kNoBlock;
      column.index = opening                  ? first.value
                     : c < job.columns.size() ? std::uint32_t{job.columns[c].next}
                                              : kNoBlock.value;
      column.next = kNoBlock.value;
      if (column.index != kNoBlock.value && input_.one_in(2)) {
        column.flags = wire::kColumnPresent;
        const std::uint64_t next = std::uint64_t{column.index} + geometry.stride();
        if (next < geometry.blocks) column.next = static_cast<std::uint32_t>(next);
      }
      if (lies && input_.one_in(16)) column.index = input_.byte();
      if (lies && input_.one_in(16)) column.next = input_.byte();
      return column;
    };
    std::vector<wire::Column> columns;
    std::size_t payload = 0;
    for (std::uint8_t c = 0; c < shape.columns; ++c) {
      columns.push_back(column_of(c));
      if (columns.back().flags != 0 && columns.back().index < geometry.blocks)
        payload += geometry.bytes_of(BlockIndex{columns.back().index});
    }
    Datagram bytes(wire::block_packet_bytes<wire::Data>(shape.columns, opening, payload));
    auto packet = wire::BlockPacket<wire::Data>::begin(bytes, job.id, shape.columns, opening);
    packet.fixed.member = member(job, rank, packet.fixed.member);
    packet.fixed.member.stream = stream;
    packet.fixed.round = at;
    packet.fixed.op = op;
    packet.fixed.shape = shape;
    packet.fixed.flags = static_cast<std::uint8_t>((opening ? wire::kDataOpening : 0) |
                                                   (input_.one_in(8) ? wire::kDataAsk : 0));
    if (opening) {
      packet.descriptor->collective = static_cast<std::uint8_t>(
          lies ? 1 + input_.below(9) : static_cast<std::size_t>(wire::Collective::kAllReduce));
      packet.descriptor->op_type = static_cast<std::uint8_t>(ElementType::kInt32);
      packet.descriptor->reduction = static_cast<std::uint8_t>(Reduction::kSum);
      if (lies && input_.one_in(4)) {
        packet.descriptor->flags = 1;
        packet.descriptor->begin = input_.number<std::uint64_t>();
        packet.descriptor->count = input_.number<std::uint64_t>();
        packet.descriptor->stride = input_.number<std::uint64_t>();
      }
    }
    std::copy(columns.begin(), columns.end(), packet.columns.begin());
    send(job, rank, std::move(bytes));
  }
  static bool all_done(const HostileJob& job) {
    return std::all_of(job.columns.begin(), job.columns.end(),
                       [](const wire::Column& c) { return c.next == kNoBlock.value; });
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
