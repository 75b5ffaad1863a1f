// libFuzzer target of the worker's engine. The input plays its aggregators: it answers what the
// worker sends, well or badly, in any order and as often as it likes, while the caller gives ops,
// leaves and aborts. Whatever comes, each op ends once, and only memory of ops that run is written.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tests/fuzz/forge.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/job.hpp"

namespace sluice::fuzz {
namespace {

using wire::Kind;

constexpr std::uint32_t kJob = 1;
constexpr unsigned kRanks = 2;
constexpr std::uint64_t kSeed = 30;
constexpr std::array<Endpoint, 2> kAggregators{
    {{.port_id = 1, .ipv4 = 1}, {.port_id = 2, .ipv4 = 2}}};

/// One shard, or two: lanes of one aggregator, or two aggregators. They may tell from which ports
/// to send.
struct Shards {
  explicit Shards(std::uint8_t choice)
      : count(1u + (choice & 1)),
        lanes(static_cast<std::uint16_t>((choice & 3) == 3 ? 2 : 1)),
        tell_ports((choice & 4) != 0) {}
  std::size_t count;
  std::uint16_t lanes;
  bool tell_ports;
  std::size_t aggregators() const { return count / lanes; }
};

/// What an aggregator knows of a stream: the round to finish next.
struct StreamView {
  std::uint64_t round = 0;
  std::uint64_t op = 0;
  wire::Shape shape{};
  std::vector<wire::Column> columns;
  bool is_keyed = false;  // then it begins with this local key, the worker's run is
  std::uint64_t horizon = 0;
  std::vector<std::byte> run = {};
  std::uint64_t following = kNoKey;  // and behind that comes this one
};

class Target {
 public:
  explicit Target(Input& input)
      : input_(input),
        streams_(static_cast<std::uint16_t>(1 + input.below(4))),
        history_(static_cast<std::uint8_t>(2u << input.below(3))),
        shards_(input.byte()),
        views_(streams_),
        caller_(rank_config(kJob, 0, kRanks, kSeed), endpoint_of(kJob, 0),
                std::span(kAggregators).first(shards_.aggregators())) {
    caller_.engine.start(now_, caller_.sink);
    listen();
  }

  void run() {
    while (!input_.empty()) act();
    caller_.engine.abort(Error(ErrorCode::kAborted, "the end"), caller_.sink);
    caller_.collect([](const auto&...) {});
    require(caller_.open() == 0, "every op ends");
    caller_.check_returned();
  }

 private:
  void act() {
    switch (input_.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        answer(0);
        break;
      case 4:
        answer(input_.below(heard_.size()));
        break;
      case 5:
        if (!heard_.empty()) heard_.erase(heard_.begin());
        break;
      case 6:
        if (!said_.empty()) say(edited(input_, known_, said_[input_.below(said_.size())]));
        break;
      case 7:
        if (!said_.empty()) tell(said_[input_.below(said_.size())]);
        break;
      case 8:
        if (caller_.open() < 4) caller_.submit(op_spec(input_.byte()), now_);
        break;
      case 9:
        now_ += pick_step(input_);
        run_due(caller_.engine, now_, caller_.sink);
        break;
      case 10:
        speak_unasked();
        break;
      default:
        rarely();
    }
    listen();
    caller_.collect([](const auto&...) {});
  }

  void rarely() {
    switch (input_.below(8)) {
      case 0:
        return caller_.engine.leave(now_, caller_.sink);
      case 1:
        return caller_.engine.abort(Error(ErrorCode::kAborted, "by choice"), caller_.sink);
      case 2:
        return caller_.engine.excuse_pause(pick_step(input_), now_);
      case 3:
        caller_.pair_bytes_most = 600;
        return;
      default:
        caller_.sink.pool->dry = input_.one_in(3);
    }
  }

  // ------------------------------------------------------------------------------ what it says
  void listen() {
    constexpr std::size_t kHeardMost = 64;
    for (const parts::Sent& sent : caller_.sink.take()) {
      learn_from(*sent.datagram, known_);
      if (heard_.size() < kHeardMost) heard_.push_back(sent);
    }
  }

  void answer(std::size_t which) {
    if (heard_.empty()) return;
    const parts::Sent sent = heard_[which];
    heard_.erase(heard_.begin() + static_cast<std::ptrdiff_t>(which));
    const Packet packet = sent.packet();
    const bool is_first = sent.to.ipv4 == kAggregators[0].ipv4 && sent.to.lane == 0;
    const auto shard = static_cast<std::uint16_t>(is_first ? 0 : 1);
    asked_from_ = sent.to.local_udp_port;
    switch (packet.kind()) {
      case Kind::kHello:
        return say(challenge(packet.as<wire::Hello>(), shard));
      case Kind::kJoin:
        return answer_join(packet.as<wire::Join>(), shard);
      case Kind::kKeepAlive:
        return say(keep_alive_ack(packet.as<wire::KeepAlive>(), shard));
      case Kind::kLeave:
        return say(left(packet.member().token));
      case Kind::kData:
      case Kind::kKeyValueData:
        look_at(packet);
        return say(input_.one_in(6) ? status(packet.member().stream)
                                    : result(packet.member().stream));
      case Kind::kProbe:
        return say(input_.one_in(2) ? result(packet.member().stream)
                                    : status(packet.member().stream));
      default:
        return say(status(packet.member().stream));
    }
  }

  void answer_join(const wire::Join& join, std::uint16_t shard) {
    const std::uint8_t choice = input_.byte();
    if (choice < 0xd0) return say(welcome(join, shard));
    if (choice < 0xf0) return say(pending(join));
    say(choice < 0xf8 ? abort(0, join.nonce) : versions(join.nonce));
  }

  void speak_unasked() {
    const auto stream = static_cast<std::uint16_t>(input_.below(streams_ + 1u));
    switch (input_.below(8)) {
      case 0:
        return say(status(stream));
      case 1:
        return say(poll(stream));
      case 2:
        return say(abort(generation(), 0));
      case 3:
        return say(refused(known_.choose(input_)));
      case 4:
        return say(left(known_.choose(input_)));
      case 5:
        ++epoch_[stream % shards_.count];  // an aggregator that was restarted
        return say(refused(token(stream % shards_.count)));
      case 6:
        return say(beacon(stream % shards_.count));
      default:
        return say(result(stream));
    }
  }

  /// Tells the worker, and may tell it again later.
  void say(Datagram bytes) {
    constexpr std::size_t kSaidMost = 64;
    if (bytes.empty()) return;
    learn_from(bytes, known_);
    if (said_.size() < kSaidMost)
      said_.push_back(bytes);
    else
      said_[input_.below(kSaidMost)] = bytes;
    tell(bytes);
  }
  void tell(const Datagram& bytes) {
    Endpoint from = kAggregators[0];
    from.local_udp_port = asked_from_;
    caller_.engine.receive(from, parts::received(caller_.sink, bytes), now_, caller_.sink);
  }

  // -------------------------------------------------------------------------------- membership
  std::uint64_t incarnation(std::uint16_t shard) const { return 7'000'000u + 10u * shard; }
  std::uint64_t token(std::uint64_t shard) const {
    return 8'000'000u + 1000 * shard + epoch_[shard];
  }
  std::uint64_t generation() const { return 6'000'000; }
  std::uint64_t epoch(std::uint64_t shard) const {
    return 9'000'000u + 1000 * shard + epoch_[shard];
  }

  Datagram challenge(const wire::Hello& hello, std::uint16_t shard) {
    auto packet = wire::make<wire::Challenge>(kJob);
    packet.nonce = hello.nonce;
    packet.lanes = shards_.lanes;
    packet.incarnation = incarnation(shard);
    packet.serial = ++serial_;
    for (std::size_t lane = 0; shards_.tell_ports && lane < shards_.lanes; ++lane)
      packet.source_ports[lane] =
          static_cast<std::uint16_t>(first_source_port(lane) + serial_ / 4 % 8);
    return datagram_of(packet);
  }
  Datagram versions(std::uint64_t nonce) {
    auto packet = wire::make<wire::Versions>(kJob);
    packet.nonce = nonce;
    packet.lowest = input_.byte();
    packet.highest = packet.header.version = input_.byte();
    return datagram_of(packet);
  }
  Datagram pending(const wire::Join& join) {
    auto packet = wire::make<wire::Pending>(kJob);
    packet.nonce = join.nonce;
    packet.serial = join.serial;
    packet.absent[0] = input_.byte();
    return datagram_of(packet);
  }
  Datagram welcome(const wire::Join& join, std::uint16_t shard) {
    auto packet = wire::make<wire::Welcome>(kJob);
    packet.nonce = join.nonce;
    packet.lanes = shards_.lanes;
    packet.incarnation = incarnation(shard);
    packet.token = token(shard);
    packet.generation = generation();
    packet.epoch = epoch(shard);
    packet.delivery_token = epoch(shard);
    packet.streams = streams_;
    packet.block_elements = join.block_elements;
    packet.payload_bytes = join.payload_bytes;
    packet.history = history_;
    packet.keep_alive_ms = 100;
    packet.group = 0xefff'0000 + shard;
    packet.flags = (join.flags & wire::kJoinNoProgress) != 0 ? 0 : wire::kWelcomeResume;
    return datagram_of(packet);
  }
  Datagram refused(std::uint64_t of) {
    auto packet = wire::make<wire::Refused>(kJob);
    packet.token = of;
    packet.number = 1;
    return datagram_of(packet);
  }
  Datagram left(std::uint64_t of) {
    auto packet = wire::make<wire::Left>(kJob);
    packet.token = of;
    return datagram_of(packet);
  }
  Datagram abort(std::uint64_t of_generation, std::uint64_t nonce) {
    const AbortInfo why{
        .reason = static_cast<wire::AbortReason>(1 + input_.below(wire::kLastAbortReason)),
        .field = static_cast<wire::Field>(input_.below(wire::kLastField + 1u)),
        .rank_a = Rank{input_.byte()}};
    return datagram_of(to_packet(why, kJob, of_generation, nonce));
  }
  Datagram keep_alive_ack(const wire::KeepAlive& packet, std::uint16_t shard) {
    auto ack = wire::make<wire::KeepAliveAck>(kJob);
    ack.epoch = ack.delivery_token = epoch(shard);
    ack.number = packet.number;
    return datagram_of(ack);
  }

  Datagram beacon(std::uint64_t shard) {
    auto packet = wire::make<wire::Beacon>(kJob);
    packet.epoch = packet.delivery_token = epoch(shard);
    packet.number = input_.byte();
    return datagram_of(packet);
  }

  // ----------------------------------------------------------------------------------- streams
  wire::DeliveryHeader delivery(std::uint16_t stream, wire::DeliveryHeader header) const {
    header.epoch = header.delivery_token = epoch(stream % shards_.count);
    header.stream = stream;
    return header;
  }
  template <class T>
  T delivered(std::uint16_t stream) const {
    T packet = wire::make<T>(kJob);
    packet.delivery = delivery(stream, packet.delivery);
    return packet;
  }

  Datagram status(std::uint16_t stream) {
    auto packet = delivered<wire::Status>(stream);
    const std::uint64_t round = stream < streams_ ? views_[stream].round : 0;
    packet.round = round - std::min<std::uint64_t>(round, input_.below(history_ + 3u));
    packet.live = input_.one_in(8) ? 0 : 1;
    packet.waiting[0] = input_.byte() % 4;
    return datagram_of(packet);
  }
  Datagram poll(std::uint16_t stream) { return datagram_of(delivered<wire::Poll>(stream)); }

  /// A contribution tells what the round is about.
  void look_at(const Packet& data) {
    StreamView& view = views_[data.member().stream % streams_];
    view.round = data.as<wire::Data>().round;
    view.op = data.as<wire::Data>().op;
    view.shape = data.shape();
    view.columns.clear();
    view.is_keyed = data.is_keyed();
    if (view.is_keyed) {
      const auto& pairs = data.as<wire::KeyValueData>();
      view.horizon = pairs.horizon;
      view.following = pairs.following;
      view.run.assign(data.run().begin(), data.run().end());
    } else {
      view.columns.assign(data.columns().begin(), data.columns().end());
    }
  }

  /// The sums of the round, if any is known; then the next round is about what it wants.
  Datagram result(std::uint16_t stream) {
    if (stream < streams_ && views_[stream].is_keyed) return pairs(stream);
    if (stream >= streams_ || views_[stream].columns.empty()) return {};
    StreamView& view = views_[stream];
    const std::uint32_t stride = std::uint32_t{streams_} * view.shape.columns;
    std::size_t payload = 0;
    for (wire::Column& column : view.columns) {
      if (column.index == kNoBlock.value) continue;
      choose_next(column, stride, view.shape);
      payload +=
          column.flags == wire::kColumnPresent ? Packet::block_bytes(view.shape, column.index) : 0;
    }
    Datagram bytes(wire::block_packet_bytes<wire::Result>(view.shape.columns, false, payload),
                   std::byte{input_.byte()});
    auto packet = wire::BlockPacket<wire::Result>::begin(bytes, kJob, view.shape.columns, false);
    packet.fixed.delivery = delivery(stream, packet.fixed.delivery);
    packet.fixed.round = view.round;
    packet.fixed.op = view.op;
    packet.fixed.shape = view.shape;
    const unsigned choice = input_.byte();
    packet.fixed.completing_rank = static_cast<std::uint16_t>(choice % 2);
    packet.fixed.lag = static_cast<std::uint16_t>(std::min<std::uint64_t>(view.round, choice / 16));
    std::copy(view.columns.begin(), view.columns.end(), packet.columns.begin());
    if (WireType(view.shape.wire_type).is_scaled())
      for (wire::Column& column : packet.columns)
        column.scale = static_cast<std::int8_t>(bytes.back());  // of the blocks' bytes

    ++view.round;
    for (wire::Column& column : view.columns) {
      column.index = column.next;
      column.flags = 0;
    }
    return bytes;
  }

  /// The sums of a round of pairs: this rank's, and some of another's; then the next round begins
  /// where this one ended, and what is left of the run is still to come.
  Datagram pairs(std::uint16_t stream) {
    StreamView& view = views_[stream];
    const RunFormat format(view.shape.columns, view.shape.block_elements,
                           WireType(view.shape.wire_type));
    std::uint64_t next = view.following;
    const std::uint8_t choice = input_.byte();
    if ((choice & 15) == 1) next = kNoKey;
    if ((choice & 15) == 2) next = input_.number<std::uint64_t>();
    std::size_t most = 64;
    if ((choice & 3) == 3) most = 1 + (choice >> 5);
    const RunView mine = RunView::parse(view.run).value_or(RunView{});
    std::vector<std::uint64_t> own(mine.coding.keys + 1), keys;
    own.resize(KeyReader(mine).read_below(kNoKey, 0, own.data()));
    const auto add = [&](std::uint64_t key) {
      if (key != kNoKey && (keys.empty() || key > keys.back())) keys.push_back(key);
    };
    for (const std::uint64_t key : own) {
      if (key < view.horizon) continue;
      if (keys.size() >= most) {
        next = std::min(next, format.first_key_of(format.chunk_of(key)));
        break;
      }
      if (input_.one_in(8)) add(key - input_.below(4));  // another rank's
      if (!input_.one_in(32)) add(key);
    }
    if (input_.one_in(8)) add(input_.one_in(2) ? view.horizon + input_.byte() : next - 1);
    const std::vector<std::byte> run = run_of(keys, format);

    auto packet = wire::make<wire::KeyValueResult>(kJob);
    packet.result.delivery = delivery(stream, packet.result.delivery);
    packet.result.round = view.round++;
    packet.result.op = view.op;
    packet.result.shape = view.shape;
    packet.result.completing_rank = choice % 2;
    packet.horizon = view.horizon;
    packet.next = view.horizon = next;
    packet.rejected[choice % 4] = choice;
    packet.run_bytes = static_cast<std::uint32_t>(run.size());
    Datagram bytes(sizeof packet + run.size());
    std::memcpy(bytes.data(), &packet, sizeof packet);
    std::ranges::copy(run, bytes.begin() + sizeof packet);
    seal(bytes);
    if (next == kNoKey) view.is_keyed = false;
    return bytes;
  }
  /// As many of these keys as fit in a small packet; some bytes of it may be others.
  std::vector<std::byte> run_of(std::span<const std::uint64_t> keys, const RunFormat& format) {
    constexpr std::size_t kRoom = 1300;
    std::vector<std::byte> run;
    if (keys.empty()) return run;
    const RunPlan plan = plan_run(keys, kRoom, format, false);
    run.resize(plan.bytes);
    write_keys(plan.coding, keys, run);  // rows and scales are zeros
    if (input_.one_in(16)) run[input_.byte() % run.size()] ^= std::byte{input_.byte()};
    return run;
  }

  /// Mostly what this rank wants next, or a block of another rank before that.
  void choose_next(wire::Column& column, std::uint32_t stride, const wire::Shape& shape) {
    const std::uint8_t choice = input_.byte();
    if ((choice & 3) == 1) column.flags = wire::kColumnPresent;
    if ((choice & 3) == 2 && column.flags != 0) column.flags = wire::kColumnWithheld;
    const std::uint64_t nearer = std::uint64_t{column.index} + stride * (1u + (choice >> 6));
    const std::uint64_t blocks =
        (shape.element_count + shape.block_elements - 1) / shape.block_elements;
    if ((choice & 12) == 4 && nearer < blocks) column.next = static_cast<std::uint32_t>(nearer);
    if ((choice & 12) == 8) column.next = kNoBlock.value;
  }

  Input& input_;
  const std::uint16_t streams_;
  const std::uint8_t history_;
  const Shards shards_;
  std::vector<StreamView> views_;
  Time now_ = Time{std::chrono::hours(1)};
  Caller caller_;
  std::vector<parts::Sent> heard_;
  std::vector<Datagram> said_;
  Known known_;
  std::uint64_t serial_ = 0;
  std::uint16_t asked_from_ = 0;
  std::array<std::uint64_t, 2> epoch_{};  // by shard
};

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::Input input(data, size);
  sluice::fuzz::Target(input).run();
  return 0;
}
