// The wire format, byte by byte: packets written by hand against the codec, the tables of
// docs/protocol.md against the structs, and everything that must be dropped.
#include "common/protocol/wire.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/text_field.hpp"
#include "tests/fuzz/packet_walk.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/drop_reason_text.hpp"
#include "tests/unit/golden_packets.hpp"
#include "tests/unit/protocol_page.hpp"
#include "tests/unit/wire_layout.hpp"

namespace wire_tests {

using namespace sluice;
using namespace sluice::test;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;
using wire::Kind;

namespace {

DropReason parse(const Bytes& bytes) {
  return fuzz::PacketWalk::run(bytes);
}

/// The packet of that name, parsed.
Packet parsed(const std::string& name) {
  Packet packet;
  REQUIRE(Packet::parse(golden().at(name), packet) == DropReason::kNone);
  REQUIRE(packet.job() == kJob);
  return packet;
}

template <class T>
T upstream() {
  auto packet = wire::make<T>(kJob);
  packet.member.token = kToken;
  packet.member.rank = 3;
  packet.member.stream = 5;
  return packet;
}
template <class T>
void address(T& packet) {
  packet.delivery.epoch = kEpoch;
  packet.delivery.delivery_token = kDeliveryToken;
  packet.delivery.stream = 5;
}
template <class T>
T downstream() {
  auto packet = wire::make<T>(kJob);
  address(packet);
  return packet;
}

Geometry ten_elements() {
  Geometry g;
  g.element_count = 10;
  g.block_elements = 4;
  g.blocks = 3;
  g.columns = 2;
  g.type = ElementType::kFloat32;
  return g;
}

void fill(wire::Descriptor& d) {
  d.collective = static_cast<std::uint8_t>(wire::Collective::kAllReduce);
  d.op_type = static_cast<std::uint8_t>(ElementType::kFloat16);
  d.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
  d.root = 7;
  d.tag = 0xf1f2f3f4f5f6f7f8;
  d.flags = wire::kWantsPart;
  d.begin = 1;
  d.count = 2;
  d.stride = 5;
}

void check(const wire::Descriptor* d) {
  REQUIRE(d != nullptr);
  CHECK(d->collective == 1);
  CHECK(d->op_type == 3);
  CHECK(d->reduction == 4);
  CHECK(d->root == 7);
  CHECK(d->tag == 0xf1f2f3f4f5f6f7f8);
  CHECK(d->flags == wire::kWantsPart);
  CHECK(d->begin == 1);
  CHECK(d->count == 2);
  CHECK(d->stride == 5);
}

void check(const wire::MemberHeader& member) {
  CHECK(member.token == kToken);
  CHECK(member.rank == 3);
  CHECK(member.stream == 5);
}

void check(const wire::DeliveryHeader& delivery) {
  CHECK(delivery.epoch == kEpoch);
  CHECK(delivery.delivery_token == kDeliveryToken);
  CHECK(delivery.stream == 5);
}

void check_ten_elements(const wire::Shape& shape) {
  CHECK(shape.element_count == 10);
  CHECK(shape.block_elements == 4);
  CHECK(shape.wire_type == 1);
  CHECK(shape.columns == 2);
  CHECK(wire::same(shape, wire::shape_of(ten_elements())));
}

struct Block {
  int column;
  Bytes bytes;
  friend bool operator==(const Block&, const Block&) = default;
};
std::vector<Block> blocks_of(const Packet& packet) {
  std::vector<Block> blocks;
  packet.for_each_block([&](std::uint8_t column, std::span<const std::byte> bytes) {
    blocks.push_back({column, {bytes.begin(), bytes.end()}});
  });
  return blocks;
}

constexpr DropReason kCodecReasons[] = {DropReason::kTooShort,       DropReason::kBadMagic,
                                        DropReason::kBadVersion,     DropReason::kBadKind,
                                        DropReason::kBadLength,      DropReason::kBadFlags,
                                        DropReason::kBadEnumeration, DropReason::kBadShape,
                                        DropReason::kBadIndex,       DropReason::kBadIntegrity};

}  // namespace

TEST_CASE("every field lies where docs/protocol.md says, without gaps") {
  std::map<std::string, std::size_t> end;
  std::map<std::string, std::size_t> total;
  for (const FieldRow& row : layout()) {
    INFO(row.type << "." << row.field);
    CHECK(row.offset == row.real_offset);
    CHECK(row.size == row.real_size);
    CHECK(row.offset == end[row.type]);
    end[row.type] = row.offset + row.size;
    total[row.type] = row.total;
  }
  CHECK(end == total);
}

TEST_CASE("docs/protocol.md has a table of each kind's fields") {
  std::map<std::string, std::size_t> documented;
  for (const FieldRow& row : layout()) documented[row.type] = row.total;
#define CHECK_DOCUMENTED(T, name, beginning, key) CHECK(documented[#T] == sizeof(wire::T));
  SLUICE_WIRE_KINDS(CHECK_DOCUMENTED)
#undef CHECK_DOCUMENTED
}

TEST_CASE("docs/protocol.md has the same kinds") {
  static const std::regex row("\\| ([A-Z_]+) \\| 0x([0-9a-f]{2}) \\| (\\d+)([^|]*)\\| ([^|]*) \\|");
  std::istringstream page(protocol_page());
  std::size_t rows = 0;
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    INFO(line);
    REQUIRE(rows < wire::kKinds.size());
    const wire::KindRow& kind = wire::kKinds[rows++];
    CHECK(match.str(1) == kind.name);
    CHECK(std::stoul(match.str(2), nullptr, 16) == static_cast<std::size_t>(kind.kind));
    CHECK(std::stoul(match.str(3)) == kind.fixed_bytes);
    const bool varies = kind.kind == wire::Kind::kData || kind.kind == wire::Kind::kResult ||
                        kind.kind == wire::Kind::kKeyValueData ||
                        kind.kind == wire::Kind::kKeyValueResult;
    CHECK((match.str(4) != " ") == varies);
    const std::string sender = match.str(5);
    CHECK((sender == "member") == (kind.beginning == wire::Beginning::kMemberHeader));
    CHECK(sender.starts_with("aggregator") == !wire::is_upstream(kind.kind));
    CHECK(wire::name(kind.kind) == kind.name);
  }
  CHECK(rows == wire::kKinds.size());
  CHECK(wire::name(wire::Kind{0}) == "?");
}

TEST_CASE("docs/protocol.md names every drop reason, and names differ") {
  const std::string page = protocol_page();
  std::set<std::string_view> names;
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = name(static_cast<DropReason>(i));
    INFO(reason);
    CHECK(names.insert(reason).second);
    CHECK(page.find("| `" + std::string(reason) + "` |") != std::string::npos);
  }
  CHECK(name(DropReason::kNone) == "none");
  CHECK(name(DropReason::kCount) == "?");
}

// --------------------------------------------------------------------------- membership, up
TEST_CASE("HELLO") {
  auto built = wire::make<wire::Hello>(kJob);
  built.nonce = kNonce;
  built.rank = 3;
  built.world_size = 8;
  CHECK(raw(built) == golden().at("hello"));
  const Packet packet = parsed("hello");
  CHECK(packet.kind() == Kind::kHello);
  CHECK(packet.as<wire::Hello>().nonce == kNonce);
  CHECK(packet.as<wire::Hello>().rank == 3);
  CHECK(packet.as<wire::Hello>().world_size == 8);
}

TEST_CASE("JOIN") {
  auto built = wire::make<wire::Join>(kJob);
  built.nonce = kNonce;
  built.incarnation = kIncarnation;
  built.serial = 9;
  built.generation = kGeneration;
  built.rank = 3;
  built.world_size = 8;
  built.streams = 16;
  built.block_elements = 256;
  built.payload_bytes = 1472;
  built.shard = 1;
  built.shards = 2;
  built.history = 4;
  built.flags = wire::kJoinNoProgress;
  built.challenge.fill(0xcc);
  built.epoch = kEpoch;
  built.host = kHost;
  set_text(built.build, "629700c");
  set_text(built.name, "bert");
  CHECK(raw(built) == golden().at("join"));
  const Packet packet = parsed("join");
  CHECK(packet.kind() == Kind::kJoin);
  const auto& join = packet.as<wire::Join>();
  CHECK(join.nonce == kNonce);
  CHECK(join.incarnation == kIncarnation);
  CHECK(join.serial == 9);
  CHECK(join.generation == kGeneration);
  CHECK(join.rank == 3);
  CHECK(join.world_size == 8);
  CHECK(join.streams == 16);
  CHECK(join.block_elements == 256);
  CHECK(join.payload_bytes == 1472);
  CHECK(join.shard == 1);
  CHECK(join.shards == 2);
  CHECK(join.history == 4);
  CHECK(join.flags == wire::kJoinNoProgress);
  CHECK(join.challenge[15] == 0xcc);
  CHECK(join.epoch == kEpoch);
  CHECK(join.host == kHost);
}

TEST_CASE("KEEPALIVE") {
  auto built = upstream<wire::KeepAlive>();
  built.number = 42;
  built.newest_beacon = 7;
  built.beacons_received = 0x80000005;
  CHECK(raw(built) == golden().at("keep_alive"));
  const Packet packet = parsed("keep_alive");
  CHECK(packet.kind() == Kind::kKeepAlive);
  check(packet.member());
  CHECK(packet.as<wire::KeepAlive>().number == 42);
  CHECK(packet.as<wire::KeepAlive>().newest_beacon == 7);
  CHECK(packet.as<wire::KeepAlive>().beacons_received == 0x80000005);
}

TEST_CASE("LEAVE") {
  auto built = upstream<wire::Leave>();
  built.abort = 1;
  const AbortInfo why{.reason = wire::AbortReason::kOpMismatch,
                      .field = wire::Field::kReduction,
                      .rank_a = Rank{3},
                      .rank_b = Rank{1},
                      .value_a = 5,
                      .value_b = 6,
                      .op = 2};
  set_cause(built, why);
  CHECK(raw(built) == golden().at("leave"));
  const Packet packet = parsed("leave");
  CHECK(packet.kind() == Kind::kLeave);
  check(packet.member());
  CHECK(packet.as<wire::Leave>().abort == 1);
  CHECK(to_info(packet.as<wire::Leave>()) == why);
}

// -------------------------------------------------------------------------- membership, down
TEST_CASE("CHALLENGE") {
  auto built = wire::make<wire::Challenge>(kJob);
  built.nonce = kNonce;
  built.incarnation = kIncarnation;
  built.serial = 9;
  built.challenge.fill(0xcc);
  built.lanes = 3;
  built.source_ports[0] = 49153;
  built.source_ports[2] = 55295;
  CHECK(raw(built) == golden().at("challenge"));
  const Packet packet = parsed("challenge");
  CHECK(packet.kind() == Kind::kChallenge);
  CHECK(packet.as<wire::Challenge>().nonce == kNonce);
  CHECK(packet.as<wire::Challenge>().incarnation == kIncarnation);
  CHECK(packet.as<wire::Challenge>().serial == 9);
  CHECK(packet.as<wire::Challenge>().challenge[15] == 0xcc);
  CHECK(packet.as<wire::Challenge>().lanes == 3);
  CHECK(packet.as<wire::Challenge>().source_ports[2] == 55295);
}

TEST_CASE("PENDING, and sets of ranks") {
  auto built = wire::make<wire::Pending>(kJob);
  built.nonce = kNonce;
  built.serial = 9;
  RankSet absent;
  for (const Rank rank : {Rank{1}, Rank{15}, Rank{255}}) absent.insert(rank);
  built.absent = absent.to_bytes();
  CHECK(raw(built) == golden().at("pending"));
  const Packet packet = parsed("pending");
  CHECK(packet.kind() == Kind::kPending);
  CHECK(packet.as<wire::Pending>().nonce == kNonce);
  CHECK(packet.as<wire::Pending>().serial == 9);
  CHECK(RankSet::from_bytes(packet.as<wire::Pending>().absent) == absent);
}

TEST_CASE("WELCOME") {
  auto built = wire::make<wire::Welcome>(kJob);
  built.nonce = kNonce;
  built.incarnation = kIncarnation;
  built.token = kToken;
  built.generation = kGeneration;
  built.epoch = kEpoch;
  built.delivery_token = kDeliveryToken;
  built.streams = 16;
  built.block_elements = 256;
  built.payload_bytes = 1472;
  built.history = 4;
  built.flags = wire::kWelcomeResume;
  built.lanes = 2;
  built.keep_alive_ms = 1000;
  built.group = 0xefff'4a07;  // 239.255.74.7
  set_text(built.build, "629700c");
  CHECK(raw(built) == golden().at("welcome"));
  const Packet packet = parsed("welcome");
  CHECK(packet.kind() == Kind::kWelcome);
  const auto& welcome = packet.as<wire::Welcome>();
  CHECK(welcome.nonce == kNonce);
  CHECK(welcome.incarnation == kIncarnation);
  CHECK(welcome.token == kToken);
  CHECK(welcome.generation == kGeneration);
  CHECK(welcome.epoch == kEpoch);
  CHECK(welcome.delivery_token == kDeliveryToken);
  CHECK(welcome.streams == 16);
  CHECK(welcome.block_elements == 256);
  CHECK(welcome.payload_bytes == 1472);
  CHECK(welcome.history == 4);
  CHECK(welcome.flags == wire::kWelcomeResume);
  CHECK(welcome.lanes == 2);
  CHECK(welcome.keep_alive_ms == 1000);
  CHECK(welcome.group == 0xefff'4a07);
}

TEST_CASE("REFUSED and LEFT") {
  auto refused = wire::make<wire::Refused>(kJob);
  refused.token = kToken;
  refused.incarnation = 0x2122232425262728;
  refused.number = 5;
  refused.shard = 1;
  refused.udp_port = 4792;
  refused.ipv4 = 0x0a000207;
  CHECK(raw(refused) == golden().at("refused"));
  CHECK(parsed("refused").kind() == Kind::kRefused);
  CHECK(parsed("refused").as<wire::Refused>().token == kToken);
  auto left = wire::make<wire::Left>(kJob);
  left.token = kToken;
  CHECK(raw(left) == golden().at("left"));
  CHECK(parsed("left").kind() == Kind::kLeft);
  CHECK(parsed("left").as<wire::Left>().token == kToken);
}

TEST_CASE("a text in a packet is cut to its field, and shows nothing but characters") {
  std::array<std::uint8_t, 4> field{1, 2, 3, 4};
  set_text(field, "");
  CHECK(text_of(field).empty());
  set_text(field, "abc");
  CHECK(text_of(field) == "abc");
  set_text(field, "abcdefgh");
  CHECK(text_of(field) == "abcd");
  field = {0x1b, 'x', ' ', 0xff};  // an escape sequence's beginning, a blank
  CHECK(text_of(field) == "?x??");
  field = {'a', 0, 'b', '\n'};
  CHECK(text_of(field) == "a");
}

TEST_CASE("VERSION is read whatever its version") {
  auto built = wire::make<wire::Versions>(kJob);
  built.nonce = kNonce;
  built.lowest = 1;
  built.highest = 3;
  CHECK(raw(built) == golden().at("versions"));
  for (unsigned version = 0; version < 256; ++version) {
    const Bytes bytes = with(golden().at("versions"), 2, static_cast<std::uint8_t>(version));
    Packet packet;
    REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
    CHECK(packet.kind() == Kind::kVersions);
    CHECK(packet.job() == kJob);
    CHECK(packet.as<wire::Versions>().nonce == kNonce);
    CHECK(packet.as<wire::Versions>().lowest == 1);
    CHECK(packet.as<wire::Versions>().highest == 3);
  }
}

TEST_CASE("what a HELLO of another version says is read where it never moves") {
  const auto other = [](std::size_t size) {
    return with_length(with(resized(golden().at("hello"), size), 2, std::uint8_t{2}));
  };
  for (const std::size_t size : {32u, 33u, 128u, 1400u}) {
    CAPTURE(size);
    const Bytes bytes = other(size);
    CHECK(parse(bytes) == DropReason::kBadVersion);
    const auto hello = hello_of_another_version(bytes);
    REQUIRE(hello);
    CHECK(hello->job == kJob);
    CHECK(hello->nonce == kNonce);
  }
  for (std::size_t size = 0; size < 32; ++size) {
    CAPTURE(size);
    Bytes bytes = resized(other(128), size);
    if (size >= 16) bytes = with_length(bytes);
    CHECK_FALSE(hello_of_another_version(bytes));
  }
  CHECK_FALSE(hello_of_another_version(golden().at("hello")));                  // of ours
  CHECK_FALSE(hello_of_another_version(with(other(128), 0, std::uint8_t{0})));  // not Sluice's
  CHECK_FALSE(hello_of_another_version(with(other(128), 3, std::uint8_t{2})));  // a JOIN
  CHECK_FALSE(hello_of_another_version(with(other(128), 3, std::uint8_t{0x8c})));
  CHECK_FALSE(hello_of_another_version(with(other(128), 4, std::uint8_t{127})));  // its length lies
}

TEST_CASE("ABORT") {
  AbortInfo info;
  info.reason = wire::AbortReason::kOpMismatch;
  info.field = wire::Field::kElementCount;
  info.rank_a = Rank{3};
  info.value_a = 1000;
  info.value_b = 900;
  info.op = 2;
  CHECK(raw(to_packet(info, kJob, kGeneration, kNonce)) == golden().at("abort"));
  const Packet packet = parsed("abort");
  CHECK(packet.kind() == Kind::kAbort);
  CHECK(packet.as<wire::Abort>().generation == kGeneration);
  CHECK(packet.as<wire::Abort>().nonce == kNonce);
  CHECK(to_info(packet.as<wire::Abort>()) == info);
}

TEST_CASE("an abort tells a person which ranks and values") {
  const AbortInfo info = to_info(parsed("abort").as<wire::Abort>());
  const std::string text = explain(info);
  for (const char* part : {"rank 3", "rank 0", "element count", "1000", "900", "op 2"}) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  const Error error = to_error(info, 7);
  CHECK(error.code() == ErrorCode::kOpMismatch);
  CHECK(error.rank() == 3);
  CHECK(error.op() == 2u);
  CHECK(std::string(error.what()).find("job 7") != std::string::npos);
}

TEST_CASE("a refusal names what to change, and on which side") {
  const auto refused = [](wire::Field field, std::uint64_t asked, std::uint64_t limit) {
    return explain({.reason = wire::AbortReason::kRefusedSetting,
                    .field = field,
                    .value_a = asked,
                    .value_b = limit});
  };
  CHECK_THAT(refused(wire::Field::kMemory, 156, 64),
             Contains("memory in MiB 156; its limit is 64. Raise") && Contains("job-memory-mib"));
  CHECK_THAT(refused(wire::Field::kStreams, 65, 64), Contains("aggregator's streams"));
  CHECK_THAT(refused(wire::Field::kShard, 0, 1), Contains("SLUICE_AGGREGATORS"));
  CHECK_THAT(refused(wire::Field::kPayloadBytes, 9000, 1472), Contains("port-mtu"));
  CHECK_THAT(refused(wire::Field::kPayloadBytes, 1, 508), !Contains("port-mtu"));
  CHECK_THAT(refused(wire::Field::kHistory, 3, 64), EndsWith("its limit is 64"));
}

TEST_CASE("who has no secret for the job is told, whatever the packet says") {
  const auto not_authentic = [](std::uint64_t lack) {
    return explain({.reason = wire::AbortReason::kNotAuthenticated, .value_a = lack});
  };
  const std::string common = "rank 0 did not prove the job's secret";
  for (const std::uint64_t nothing : {std::uint64_t{0}, std::uint64_t{3}, ~std::uint64_t{0}})
    CHECK(not_authentic(nothing) == common);
  CHECK_THAT(not_authentic(1), StartsWith(common) && Contains("aggregator has none"));
  CHECK_THAT(not_authentic(2), StartsWith(common) && Contains("it has none"));
}

TEST_CASE("the loss of a rank is told with the time that it was last heard") {
  const auto lost = [](wire::AbortReason reason, std::uint64_t ms) {
    const AbortInfo info{.reason = reason, .rank_a = Rank{3}, .value_a = ms};
    CHECK(error_code(info) == ErrorCode::kWorkerLost);
    CHECK(to_error(info, 7).rank() == 3);
    return explain(info);
  };
  CHECK(lost(wire::AbortReason::kRankDisconnected, 12) ==
        "rank 3 is lost: its local port disconnected, last heard 12 ms ago");
  CHECK(lost(wire::AbortReason::kRankSilent, 1000) ==
        "rank 3 is declared failed: nothing was received for 1000 ms (liveness time-out)");
}

TEST_CASE("a rank that is gone after an exception has failed, whatever else a packet says") {
  const auto gone = [](wire::AbortReason reason, std::uint64_t departure) {
    const AbortInfo info{.reason = reason, .rank_a = Rank{3}, .value_a = departure};
    CHECK(error_code(info) == ErrorCode::kRankLeft);
    CHECK(to_error(info, 7).rank() == 3);
    return explain(info);
  };
  for (const auto reason : {wire::AbortReason::kRankLeft, wire::AbortReason::kRankAborted}) {
    CHECK(gone(reason, 1) ==
          "rank 3 failed: an exception ended its program, or its use of the job");
    for (const std::uint64_t unknown : {kLastDeparture + 1, ~std::uint64_t{0}})
      CHECK(gone(reason, unknown) == gone(reason, 0));
  }
  CHECK(gone(wire::AbortReason::kRankLeft, 0) ==
        "rank 3 left the job while other ranks still call collectives");
  CHECK(gone(wire::AbortReason::kRankAborted, 0) ==
        "rank 3 ended the job, or left it with ops pending");
}

TEST_CASE("an aggregator that is lost is named, and no rank is at fault") {
  const AbortInfo info{
      .reason = wire::AbortReason::kAggregatorLost, .rank_a = Rank{3}, .value_a = 2};
  CHECK(explain(info) == "rank 3 lost the connection to aggregator 2");
  CHECK(to_error(info, 7).code() == ErrorCode::kAggregatorLost);
  CHECK_FALSE(to_error(info, 7).rank());
}

TEST_CASE("of an op that timed out, who is waited for is told, if that is known") {
  AbortInfo info{
      .reason = wire::AbortReason::kOpTimedOut, .rank_a = Rank{3}, .value_a = 250, .op = 17};
  CHECK(explain(info) == "op 17 was not done on rank 3 within 250 ms");
  CHECK(to_error(info, 7).code() == ErrorCode::kOpTimedOut);
  CHECK(to_error(info, 7).op() == 17);
  CHECK_FALSE(to_error(info, 7).rank());
  info.rank_b = Rank{5};
  info.value_b = 1;
  CHECK(explain(info) == "op 17 was not done on rank 3 within 250 ms; it waited for rank 5");
  CHECK(to_error(info, 7).rank() == 5);
  info.value_b = 4;
  CHECK(explain(info) ==
        "op 17 was not done on rank 3 within 250 ms; it waited for rank 5 and 3 more");
}

TEST_CASE("of a message that timed out, both sides are told") {
  const AbortInfo info{.reason = wire::AbortReason::kMessageTimedOut,
                       .rank_a = Rank{3},
                       .rank_b = Rank{5},
                       .value_a = 250,
                       .op = 17};
  CHECK(explain(info) == "message 17 from rank 3 to rank 5 was not done within 250 ms");
  CHECK(to_error(info, 7).code() == ErrorCode::kOpTimedOut);
  CHECK_FALSE(to_error(info, 7).rank());
  CHECK_FALSE(to_error(info, 7).op());
}

TEST_CASE("every abort reason and field has its own words") {
  std::set<std::string> texts;
  for (std::uint16_t reason = 1; reason <= wire::kLastAbortReason; ++reason) {
    AbortInfo info;
    info.reason = static_cast<wire::AbortReason>(reason);
    CHECK(texts.insert(explain(info)).second);
    CHECK(error_code(info) != ErrorCode::kProtocol);
  }
  CHECK(texts.count("unknown reason") == 0);
  texts.clear();
  AbortInfo info;
  info.reason = wire::AbortReason::kJoinMismatch;
  for (std::uint16_t field = 0; field <= wire::kLastField; ++field) {
    info.field = static_cast<wire::Field>(field);
    CHECK(texts.insert(explain(info)).second);
  }
  info.field = wire::Field::kWireType;
  info.value_a = 1;
  info.value_b = 4;
  for (const char* part : {"wire type", " float", " bfloat16"})
    CHECK(explain(info).find(part) != std::string::npos);
}

TEST_CASE("KEEPALIVE_ACK") {
  auto built = wire::make<wire::KeepAliveAck>(kJob);
  built.epoch = kEpoch;
  built.number = 42;
  built.delivery_token = kDeliveryToken;
  CHECK(raw(built) == golden().at("keep_alive_ack"));
  const Packet packet = parsed("keep_alive_ack");
  CHECK(packet.kind() == Kind::kKeepAliveAck);
  CHECK(packet.as<wire::KeepAliveAck>().epoch == kEpoch);
  CHECK(packet.as<wire::KeepAliveAck>().number == 42);
  CHECK(packet.as<wire::KeepAliveAck>().delivery_token == kDeliveryToken);
}

TEST_CASE("BEACON") {
  auto built = wire::make<wire::Beacon>(kJob);
  built.epoch = kEpoch;
  built.number = 42;
  built.delivery_token = kDeliveryToken;
  CHECK(raw(built) == golden().at("beacon"));
  const Packet packet = parsed("beacon");
  CHECK(packet.kind() == Kind::kBeacon);
  CHECK(packet.as<wire::Beacon>().number == 42);
}

// -------------------------------------------------------------------------------- streams, up
TEST_CASE("DATA of an opening round") {
  Bytes built(wire::block_packet_bytes<wire::Data>(2, true, 16));
  const auto writer = wire::BlockPacket<wire::Data>::begin(built, kJob, 2, true);
  writer.fixed.member.token = kToken;
  writer.fixed.member.rank = 3;
  writer.fixed.member.stream = 5;
  writer.fixed.round = 10;
  writer.fixed.op = 2;
  writer.fixed.shape = wire::shape_of(ten_elements());
  writer.fixed.flags = wire::kDataOpening | wire::kDataAsk;
  REQUIRE(writer.descriptor != nullptr);
  fill(*writer.descriptor);
  REQUIRE(writer.columns.size() == 2);
  writer.columns[0].index = 0;
  writer.columns[0].next = 2;
  writer.columns[0].flags = wire::kColumnPresent;
  writer.columns[1].index = 1;
  writer.columns[1].next = kNone;
  const float block[] = {1, 2, 3, 4};
  std::memcpy(writer.payload, block, sizeof block);
  CHECK(built == golden().at("data"));

  const Packet packet = parsed("data");
  CHECK(packet.kind() == Kind::kData);
  check(packet.member());
  CHECK(packet.as<wire::Data>().round == 10);
  CHECK(packet.as<wire::Data>().op == 2);
  CHECK(packet.as<wire::Data>().flags == (wire::kDataOpening | wire::kDataAsk));
  check_ten_elements(packet.shape());
  check(packet.descriptor());
  REQUIRE(packet.columns().size() == 2);
  CHECK(packet.columns()[0].index == 0);
  CHECK(packet.columns()[0].next == 2);
  CHECK(packet.columns()[1].index == 1);
  CHECK(packet.columns()[1].next == kNone);
  CHECK(blocks_of(packet) == std::vector<Block>{{0, hex(kBlock0)}});
}

TEST_CASE("DATA of a later round, the last block short") {
  Bytes built(wire::block_packet_bytes<wire::Data>(2, false, 8));
  const auto writer = wire::BlockPacket<wire::Data>::begin(built, kJob, 2, false);
  writer.fixed.member.token = kToken;
  writer.fixed.member.rank = 3;
  writer.fixed.member.stream = 5;
  writer.fixed.round = 11;
  writer.fixed.op = 2;
  writer.fixed.shape = wire::shape_of(ten_elements());
  CHECK(writer.descriptor == nullptr);
  writer.columns[0].index = 2;
  writer.columns[0].next = kNone;
  writer.columns[0].flags = wire::kColumnPresent;
  writer.columns[1].index = kNone;
  writer.columns[1].next = kNone;
  const float block[] = {5, 6};
  std::memcpy(writer.payload, block, sizeof block);
  CHECK(built == golden().at("data of a later round"));

  const Packet packet = parsed("data of a later round");
  CHECK(packet.as<wire::Data>().round == 11);
  CHECK(packet.descriptor() == nullptr);
  check_ten_elements(packet.shape());
  CHECK(packet.columns()[1].index == kNone);
  CHECK(blocks_of(packet) == std::vector<Block>{{0, hex(kBlock2)}});
}

TEST_CASE("ACK, PROBE and SYNC") {
  auto ack = upstream<wire::Ack>();
  ack.position = 10;
  CHECK(raw(ack) == golden().at("ack"));
  CHECK(parsed("ack").kind() == Kind::kAck);
  check(parsed("ack").member());
  CHECK(parsed("ack").as<wire::Ack>().position == 10);
  auto probe = upstream<wire::Probe>();
  probe.position = 10;
  probe.have = 0b101;
  CHECK(raw(probe) == golden().at("probe"));
  CHECK(parsed("probe").kind() == Kind::kProbe);
  check(parsed("probe").member());
  CHECK(parsed("probe").as<wire::Probe>().position == 10);
  CHECK(parsed("probe").as<wire::Probe>().have == 5);
  auto sync = upstream<wire::Sync>();
  sync.applied = 10;
  CHECK(raw(sync) == golden().at("sync"));
  CHECK(parsed("sync").kind() == Kind::kSync);
  check(parsed("sync").member());
  CHECK(parsed("sync").as<wire::Sync>().applied == 10);
}

// ------------------------------------------------------------------------------ streams, down
TEST_CASE("RESULT") {
  Bytes built(wire::block_packet_bytes<wire::Result>(2, false, 8));
  const auto writer = wire::BlockPacket<wire::Result>::begin(built, kJob, 2, false);
  address(writer.fixed);
  writer.fixed.round = 10;
  writer.fixed.op = 2;
  writer.fixed.shape = wire::shape_of(ten_elements());
  writer.fixed.completing_rank = 3;
  writer.fixed.lag = 4;
  writer.columns[0].index = 2;
  writer.columns[0].next = kNone;
  writer.columns[0].flags = wire::kColumnPresent;
  writer.columns[1].index = kNone;
  writer.columns[1].next = kNone;
  const float block[] = {5, 6};
  std::memcpy(writer.payload, block, sizeof block);
  CHECK(built == golden().at("result"));

  const Packet packet = parsed("result");
  CHECK(packet.kind() == Kind::kResult);
  check(packet.delivery());
  CHECK(packet.as<wire::Result>().round == 10);
  CHECK(packet.as<wire::Result>().op == 2);
  CHECK(packet.as<wire::Result>().completing_rank == 3);
  CHECK(packet.as<wire::Result>().lag == 4);
  check_ten_elements(packet.shape());
  CHECK(packet.descriptor() == nullptr);
  CHECK(packet.columns()[0].index == 2);
  CHECK(packet.columns()[0].next == kNone);
  CHECK(packet.columns()[1].index == kNone);
  CHECK(blocks_of(packet) == std::vector<Block>{{0, hex(kBlock2)}});

  const Packet brief = parsed("result without its sum");
  CHECK(brief.as<wire::Result>().round == 10);
  CHECK(brief.columns()[0].index == 2);
  CHECK(brief.columns()[0].flags == wire::kColumnWithheld);
  CHECK(blocks_of(brief).empty());
}

TEST_CASE("STATUS and POLL") {
  auto status = downstream<wire::Status>();
  status.round = 10;
  status.live = 1;
  RankSet waiting;
  waiting.insert(Rank{0});
  waiting.insert(Rank{3});
  status.waiting = waiting.to_bytes();
  CHECK(raw(status) == golden().at("status"));
  CHECK(parsed("status").kind() == Kind::kStatus);
  check(parsed("status").delivery());
  CHECK(parsed("status").as<wire::Status>().round == 10);
  CHECK(parsed("status").as<wire::Status>().live == 1);
  CHECK(RankSet::from_bytes(parsed("status").as<wire::Status>().waiting) == waiting);
  auto poll = downstream<wire::Poll>();
  poll.streams.front() = 2;  // the second of the shard's streams
  poll.streams.back() = 0x80;
  CHECK(raw(poll) == golden().at("poll"));
  CHECK(parsed("poll").kind() == Kind::kPoll);
  check(parsed("poll").delivery());
}

TEST_CASE("the bit of a kind's direction") {
  for (const auto& [name, bytes] : golden()) {
    INFO(name);
    CHECK(wire::is_upstream(parsed(name).kind()) == ((bytes[3] & std::byte{0x80}) == std::byte{0}));
  }
}

// ------------------------------------------------------------------------ what must be dropped
TEST_CASE("every truncation is dropped") {
  for (const auto& [name, bytes] : golden()) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CAPTURE(name, size);
      const Bytes cut = resized(bytes, size);
      const auto too_small = size < 16 ? DropReason::kTooShort : DropReason::kBadLength;
      REQUIRE(parse(cut) == too_small);
      if (size >= 16) REQUIRE(parse(with_length(cut)) == DropReason::kBadLength);
    }
  }
}

TEST_CASE("every extension by one byte is dropped") {
  for (const auto& [name, bytes] : golden()) {
    INFO(name);
    const Bytes longer = resized(bytes, bytes.size() + 1);
    CHECK(parse(longer) == DropReason::kBadLength);
    CHECK(parse(with_length(longer)) == DropReason::kBadLength);
  }
}

TEST_CASE("every bit of the header's constant parts is checked") {
  for (const auto& entry : golden()) {
    const Bytes& bytes = entry.second;
    INFO(entry.first);
    for (unsigned bit = 0; bit < 16; ++bit) {
      const auto flip16 = [&](std::size_t offset) {
        Bytes b = bytes;
        b[offset + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        return parse(b);
      };
      CHECK(flip16(0) == DropReason::kBadMagic);
      CHECK(flip16(4) == DropReason::kBadLength);
      // Bit 0 announces a trailer, for which the packet is too short.
      CHECK(flip16(6) == (bit == 0 ? DropReason::kBadLength : DropReason::kBadFlags));
      CHECK(flip16(12) == DropReason::kBadIntegrity);
      CHECK(flip16(14) == DropReason::kBadIntegrity);
    }
    for (unsigned version = 0; version < 256; ++version) {
      if (version == wire::kVersion || entry.first == "versions") continue;
      CHECK(parse(with(bytes, 2, static_cast<std::uint8_t>(version))) == DropReason::kBadVersion);
    }
  }
}

TEST_CASE("unknown kinds are dropped") {
  std::set<std::uint8_t> known;
  for (const auto& [name, bytes] : golden()) known.insert(std::to_integer<std::uint8_t>(bytes[3]));
  CHECK(known.size() == wire::kKinds.size());
  for (unsigned kind = 0; kind < 256; ++kind) {
    const auto k = static_cast<std::uint8_t>(kind);
    if (known.count(k) != 0) continue;
    CAPTURE(kind);
    CHECK(parse(with(golden().at("data"), 3, k)) == DropReason::kBadKind);
  }
}

TEST_CASE("every field out of its range is dropped under the right reason") {
  using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
  const Bytes data = golden().at("data");
  const Bytes later = golden().at("data of a later round");
  const Bytes result = golden().at("result");
  const Bytes abort = golden().at("abort");

  SECTION("flags") {
    CHECK(parse(with(data, 60, uint8_t{4})) == DropReason::kBadFlags);
    CHECK(parse(with(data, 60, uint8_t{0x83})) == DropReason::kBadFlags);
    CHECK(parse(with(data, 64 + 3, uint8_t{2})) == DropReason::kBadFlags);
    CHECK(parse(with(data, 112 + 10, uint8_t{2})) == DropReason::kBadFlags);  // only of a RESULT
    CHECK(parse(with(data, 112 + 10, uint8_t{3})) == DropReason::kBadFlags);
    CHECK(parse(with(data, 124 + 10, uint8_t{0x80})) == DropReason::kBadFlags);
    CHECK(parse(with(result, 72 + 10, uint8_t{3})) == DropReason::kBadFlags);
    CHECK(parse(with(result, 72 + 10, uint8_t{4})) == DropReason::kBadFlags);
    CHECK(parse(with(result, 72 + 10, uint8_t{2})) == DropReason::kBadLength);  // but is there
    CHECK(parse(with(golden().at("join"), 63, uint8_t{8})) == DropReason::kBadFlags);
    CHECK(parse(with(golden().at("leave"), 32, uint8_t{2})) == DropReason::kBadFlags);
    CHECK(parse(with(golden().at("welcome"), 71, uint8_t{16})) == DropReason::kBadFlags);
    CHECK(parse(with(golden().at("status"), 48, uint8_t{2})) == DropReason::kBadFlags);
    CHECK(parse(with(golden().at("join"), 63, uint8_t{3})) == DropReason::kNone);
    CHECK(parse(with(golden().at("leave"), 32, uint8_t{0})) == DropReason::kNone);
    CHECK(parse(with(golden().at("welcome"), 71, uint8_t{3})) == DropReason::kNone);
    CHECK(parse(with(golden().at("status"), 48, uint8_t{0})) == DropReason::kNone);
  }
  SECTION("enumerations") {
    for (const unsigned type : {0u, 12u, 255u}) {
      const auto t = static_cast<uint8_t>(type);
      CHECK(parse(with(data, 58, t)) == DropReason::kBadEnumeration);
      CHECK(parse(with(result, 66, t)) == DropReason::kBadEnumeration);
      CHECK(parse(with(data, 65, t)) == DropReason::kBadEnumeration);
    }
    for (const unsigned scaled : {10u, 11u}) {  // on the wire alone
      const auto t = static_cast<uint8_t>(scaled);
      CHECK(parse(with(data, 58, t)) == DropReason::kBadLength);
      CHECK(parse(with(data, 65, t)) == DropReason::kBadEnumeration);
    }
    for (const unsigned reduction : {0u, 6u, 7u, 8u, 9u, 255u}) {  // of floats
      CHECK(parse(with(data, 66, static_cast<uint8_t>(reduction))) == DropReason::kBadEnumeration);
    }
    for (const unsigned collective : {0u, 10u, 255u}) {
      CHECK(parse(with(data, 64, static_cast<uint8_t>(collective))) == DropReason::kBadEnumeration);
    }
    for (unsigned collective = 1; collective <= 9; ++collective)
      CHECK(parse(with(data, 64, static_cast<uint8_t>(collective))) == DropReason::kNone);
    // A bitwise reduction needs integers in the caller's tensor and on the wire.
    const auto bitwise = [&](Bytes bytes, unsigned wire_type, unsigned op_type) {
      bytes[58] = static_cast<std::byte>(wire_type);
      bytes[65] = static_cast<std::byte>(op_type);
      return parse(with(bytes, 66, uint8_t{6}));
    };
    CHECK(bitwise(data, 5, 5) == DropReason::kNone);
    CHECK(bitwise(data, 5, 1) == DropReason::kBadEnumeration);
    CHECK(bitwise(data, 1, 5) == DropReason::kBadEnumeration);
    for (const unsigned reason : {0u, wire::kLastAbortReason + 1u, 0x0106u, 0xffffu})
      CHECK(parse(with(abort, 56, static_cast<uint16_t>(reason))) == DropReason::kBadEnumeration);
    for (const unsigned field : {wire::kLastField + 1u, 0x0100u, 0xffffu})
      CHECK(parse(with(abort, 58, static_cast<uint16_t>(field))) == DropReason::kBadEnumeration);
    for (uint16_t reason = 1; reason <= wire::kLastAbortReason; ++reason)
      CHECK(parse(with(abort, 56, reason)) == DropReason::kNone);
    const Bytes leave = golden().at("leave");
    CHECK(parse(with(leave, 64, uint16_t{0})) == DropReason::kNone);
    CHECK(parse(with(leave, 64, wire::kLastAbortReason)) == DropReason::kNone);
    for (const unsigned reason : {wire::kLastAbortReason + 1u, 0x0106u, 0xffffu})
      CHECK(parse(with(leave, 64, static_cast<uint16_t>(reason))) == DropReason::kBadEnumeration);
    for (const unsigned field : {wire::kLastField + 1u, 0x0100u, 0xffffu})
      CHECK(parse(with(leave, 66, static_cast<uint16_t>(field))) == DropReason::kBadEnumeration);
    for (uint16_t field = 0; field <= wire::kLastField; ++field) {
      CHECK(parse(with(abort, 58, field)) == DropReason::kNone);
      CHECK(parse(with(leave, 66, field)) == DropReason::kNone);
    }
  }
  SECTION("shape") {
    for (const auto& [bytes, shape] : {std::pair{data, 48u}, {later, 48u}, {result, 56u}}) {
      CHECK(parse(with(bytes, shape + 11, uint8_t{0})) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape + 8, uint16_t{0})) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape + 8, uint16_t{16385})) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape + 8, uint16_t{65535})) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape, max_element_count(4) + 1)) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape, ~uint64_t{0})) == DropReason::kBadShape);
      CHECK(parse(with(bytes, shape + 11, uint8_t{wire::kMaxColumns + 1})) ==
            DropReason::kBadShape);
      // Within the range, but the packet has not as many bytes.
      CHECK(parse(with(bytes, shape + 11, uint8_t{wire::kMaxColumns})) == DropReason::kBadLength);
    }
    CHECK(parse(with(data, 48, max_element_count(4))) == DropReason::kNone);
  }
  SECTION("indices of DATA and RESULT") {
    const auto column = [](const Bytes& bytes, std::size_t offset, uint32_t index, uint32_t next) {
      return parse(with(with(bytes, offset, index), offset + 4, next));
    };
    for (const auto& [bytes, at] : {std::pair{data, std::size_t{112}}, {result, std::size_t{72}}}) {
      const std::size_t absent = at + 12;
      CHECK(column(bytes, absent, 0, 1) == DropReason::kNone);
      CHECK(column(bytes, absent, 2, kNone) == DropReason::kNone);
      CHECK(column(bytes, absent, kNone, kNone) == DropReason::kNone);
      CHECK(column(bytes, absent, 3, kNone) == DropReason::kBadIndex);          // = blocks
      CHECK(column(bytes, absent, kNone - 1, kNone) == DropReason::kBadIndex);  // far beyond
      CHECK(column(bytes, absent, 0, 3) == DropReason::kBadIndex);              // next = blocks
      CHECK(column(bytes, absent, 1, 1) == DropReason::kBadIndex);              // next = index
      CHECK(column(bytes, absent, 2, 1) == DropReason::kBadIndex);              // next < index
      CHECK(column(bytes, absent, kNone, 1) == DropReason::kBadIndex);  // next of a done one
      CHECK(column(bytes, at, kNone, kNone) == DropReason::kBadIndex);  // present with none
    }
    CHECK(parse(with(result, 68, uint16_t{kMaxRanks})) == DropReason::kBadIndex);
    CHECK(parse(with(result, 70, uint16_t{11})) == DropReason::kBadIndex);  // of round 10
    CHECK(parse(with(with(result, 40, uint64_t{99}), 70, uint16_t{wire::kMaxHistory})) ==
          DropReason::kBadIndex);
    CHECK(parse(with(result, 68, uint16_t{kMaxRanks - 1})) == DropReason::kNone);
    // An empty tensor has no index but none.
    CHECK(parse(with(with(data, 48, uint64_t{0}), 122, uint8_t{0})) == DropReason::kBadIndex);
  }
  SECTION("payload") {
    // A whole block where the short one is due, and the reverse.
    CHECK(parse(with_length(later + hex("00*8"))) == DropReason::kBadLength);
    CHECK(parse(with_length(resized(data, data.size() - 8))) == DropReason::kBadLength);
    CHECK(parse(with(data, 122, uint8_t{0})) == DropReason::kBadLength);
    CHECK(parse(with(data, 134, uint8_t{1})) == DropReason::kBadLength);
    CHECK(parse(with(data, 58, uint8_t{2})) == DropReason::kBadLength);  // doubles are longer
    // The last block in full: 12 elements are three whole blocks.
    CHECK(parse(with_length(with(later, 48, uint64_t{12}) + hex("00*8"))) == DropReason::kNone);
    // An opening round without its descriptor, a later one with it.
    CHECK(parse(with(later, 60, uint8_t{1})) != DropReason::kNone);
    CHECK(parse(with(data, 60, uint8_t{0})) != DropReason::kNone);
  }
}

TEST_CASE("scaled blocks are as long as their type says, and have a scale that can be") {
  const Bytes result = golden().at("result");  // block 2, of two elements
  const auto scaled = [&](std::uint8_t type, std::size_t bytes, std::int16_t scale) {
    const Bytes shorter = resized(result, result.size() - 8 + bytes);
    return parse(
        with_length(with(with(shorter, 66, type), 72 + 8, static_cast<std::uint16_t>(scale))));
  };
  for (const std::uint8_t type : {std::uint8_t{10}, std::uint8_t{11}}) {
    const std::size_t bytes = type == 10 ? 2 : 1;
    const std::int16_t largest = type == 10 ? 121 : 125;
    CHECK(scaled(type, bytes + 1, 0) == DropReason::kBadLength);
    CHECK(scaled(type, bytes - 1, 0) == DropReason::kBadLength);
    for (const std::int16_t scale :
         {std::int16_t{-32768}, std::int16_t{-149}, std::int16_t{0}, largest})
      CHECK(scaled(type, bytes, scale) == DropReason::kNone);
    for (const int scale : {-32767, -150, largest + 1, 32767})
      CHECK(scaled(type, bytes, static_cast<std::int16_t>(scale)) == DropReason::kBadShape);
  }
  // An odd number of elements: three of 4 bits take two bytes, as four do.
  const auto of_elements = [&](std::uint64_t elements, std::size_t bytes) {
    const Bytes shorter = resized(result, result.size() - 8 + bytes);
    return parse(with_length(with(with(shorter, 56, elements), 66, std::uint8_t{11})));
  };
  for (const std::uint64_t elements : {11, 12}) {
    CHECK(of_elements(elements, 1) == DropReason::kBadLength);
    CHECK(of_elements(elements, 2) == DropReason::kNone);
    CHECK(of_elements(elements, 3) == DropReason::kBadLength);
  }
  CHECK(of_elements(9, 1) == DropReason::kNone);
}

TEST_CASE("reserved fields are ignored, so that later versions may use them") {
  for (const FieldRow& row : layout()) {
    const bool reserved = row.field.rfind("reserved", 0) == 0 || row.field == "padding";
    if (!reserved) continue;
    for (const auto& [name, bytes] : golden()) {
      static const std::map<std::string, std::string> kNames{
          {"hello", "Hello"},   {"join", "Join"},    {"keep_alive", "KeepAlive"},
          {"leave", "Leave"},   {"data", "Data"},    {"welcome", "Welcome"},
          {"result", "Result"}, {"status", "Status"}};
      const auto type = kNames.find(name);
      if (type == kNames.end() || type->second != row.type) continue;
      CAPTURE(name, row.field);
      CHECK(parse(with(bytes, row.offset, std::uint8_t{0xff})) == DropReason::kNone);
    }
  }
  CHECK(parse(with(golden().at("ack"), 28, ~std::uint32_t{0})) == DropReason::kNone);
  CHECK(parse(with(golden().at("poll"), 34, ~std::uint32_t{0})) == DropReason::kNone);
  CHECK(parse(with(golden().at("data"), 64 + 6, std::uint16_t{1})) == DropReason::kNone);
  CHECK(parse(with(golden().at("data"), 112 + 8, std::uint16_t{1})) == DropReason::kNone);
  CHECK(parse(with(golden().at("data"), 112 + 11, std::uint8_t{1})) == DropReason::kNone);
}

TEST_CASE("a dropped packet leaves the view as it was") {
  Packet packet = parsed("ack");
  const Bytes bad = with(golden().at("data"), 58, std::uint8_t{0});
  CHECK(Packet::parse(bad, packet) == DropReason::kBadEnumeration);
  CHECK(packet.kind() == Kind::kAck);
  CHECK(packet.bytes().data() == golden().at("ack").data());
}

// ---------------------------------------------------------------------------------- mutations
namespace {

/// Valid packets with a few bytes changed, most of them made consistent in length again.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {
    for (const auto& [name, bytes] : golden()) corpus_.push_back(bytes);
  }

  Bytes next() {
    Bytes bytes = corpus_[below(corpus_.size())];
    for (std::size_t n = 1 + below(3); n > 0 && !bytes.empty(); --n) mutate(bytes);
    if (below(8) != 0) mend(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void mutate(Bytes& bytes) {
    static constexpr std::uint32_t kEdges[] = {0,  1,   2,   3,     4,     63,         64,
                                               65, 255, 256, 16384, 16385, 0xfffffffe, 0xffffffff};
    const std::size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(below(256));
        break;
      case 2:
      case 3:
        overwrite(bytes, at, kEdges[below(std::size(kEdges))], std::size_t{1} << below(3));
        break;
      case 4:
        bytes.resize(below(2) == 0 ? at : bytes.size() + 1 + below(64));
        break;
      default: {
        const Bytes& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size());
        const std::size_t size = std::min({other.size() - from, bytes.size() - at, below(24)});
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), size,
                    bytes.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  }

  static void overwrite(Bytes& bytes, std::size_t at, std::uint32_t value, std::size_t size) {
    for (std::size_t i = 0; i < size && at + i < bytes.size(); ++i)
      bytes[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }

  /// Magic, version and length as they must be.
  static void mend(Bytes& bytes) {
    if (bytes.size() < 16) return;
    overwrite(bytes, 0, 0x00014c53u, 3);
    overwrite(bytes, 4, static_cast<std::uint32_t>(bytes.size()), 4);
  }

  std::mt19937_64 random_;
  std::vector<Bytes> corpus_;
};

}  // namespace

TEST_CASE("a million mutations are dropped, or packets that lie within their bytes") {
  Mutator mutator(0x51u);
  std::map<DropReason, unsigned> reasons;
  std::map<Kind, unsigned> accepted;
  for (int i = 0; i < 1'000'000; ++i) {
    const Bytes bytes = mutator.next();
    // An allocation of just this size, so that a sanitizer sees one byte too many.
    const auto exact = std::make_unique<std::byte[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), exact.get());
    DropReason reason{};
    try {
      reason = fuzz::PacketWalk::run({exact.get(), bytes.size()});
    } catch (const std::logic_error& broken) {
      FAIL("mutation " << i << ": not kept: " << broken.what());
    }
    ++reasons[reason];
    if (reason == DropReason::kNone) ++accepted[static_cast<Kind>(bytes[3])];
  }
  for (const DropReason reason : kCodecReasons) {
    INFO(reason);
    CHECK(reasons[reason] > 0);
  }
  CHECK(reasons.size() == std::size(kCodecReasons) + 1);
  CHECK(accepted.size() == wire::kKinds.size());
  for (const auto& [kind, count] : accepted) {
    INFO(static_cast<int>(kind));
    CHECK(count > 1000);
  }
}

}  // namespace wire_tests
