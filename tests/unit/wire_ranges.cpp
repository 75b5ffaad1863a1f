// Every Range of docs/protocol.md that the codec checks, tried on the codec: the lowest and the
// highest value are accepted, those beside them are not. Values of a range that is in italics, or
// that are ignored, or may be any, are never the codec's to refuse.
#include <cctype>
#include <cstdint>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "common/protocol/geometry.hpp"
#include "common/protocol/packet.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/drop_reason_text.hpp"
#include "tests/unit/golden_packets.hpp"
#include "tests/unit/protocol_page.hpp"

namespace wire_ranges_tests {

using namespace sluice;
using namespace sluice::test;

namespace {

// ------------------------------------------------------------------------- packets to try it on
// An op of 10 elements of int32 in blocks of 4, on streams of one column, and a sum of them.
const std::string kOneColumn = "0a 00*7  04 00  05  01 ";
const std::string kIntegerSum = "01 05 01 00*45 ";
const std::string kDone = "ff*4  ff*4  00*4 ";        // a column without a block
const std::string kFirstBlock = "00*4  ff*4  00*4 ";  // one with block 0, which is absent
constexpr std::size_t kBlockBytes = 16;
constexpr std::uint64_t kBlocks = 3;

Bytes data(bool opening, const std::string& column = kDone) {
  return with_length(hex(head("05", "00 00") + kMember + "0a 00*7  02 00*7 " + kOneColumn +
                         (opening ? "01 00*3 " + kIntegerSum : "00*4 ") + column));
}

Bytes result(const std::string& column) {
  return with_length(hex(head("88", "00 00") + kDelivery + "63 00*7  02 00*7 " + kOneColumn +
                         "03 00  00 00 " + column));
}

/// A packet that has the part in question, and where.
struct Place {
  Bytes packet;
  std::size_t offset = 0;
};

/// "keep_alive_ack" of "KeepAliveAck": as the golden packet of a kind is called.
std::string golden_name(const std::string& type) {
  std::string name;
  for (const char c : type) {
    if (std::isupper(c) != 0 && !name.empty()) name += '_';
    name += static_cast<char>(std::tolower(c));
  }
  return name;
}

bool begins_with(wire::Kind kind, wire::Beginning beginning) {
  const wire::KindRow* const row = wire::row_of(kind);
  return row != nullptr && row->beginning == beginning;
}

std::vector<Place> places_of(const std::string& type) {
  if (type == "Data") return {{data(false)}};
  if (type == "Result") return {{result(kDone)}};
  if (type == "Shape") return {{data(false), 48}, {data(true), 48}, {result(kDone), 56}};
  if (type == "Descriptor") return {{data(true), 64}};
  if (type == "Column") return {{result(kFirstBlock), 72}};
  if (type == "RunHeader")
    return {{golden().at("key_value_data"), sizeof(wire::KeyValueData) + sizeof(wire::Descriptor)},
            {golden().at("key_value_result"), sizeof(wire::KeyValueResult)}};
  std::vector<Place> places;
  for (const auto& [name, packet] : golden()) {
    const auto kind = static_cast<wire::Kind>(packet[3]);
    if (type == "Header" ||
        (type == "MemberHeader" && begins_with(kind, wire::Beginning::kMemberHeader)) ||
        (type == "DeliveryHeader" && begins_with(kind, wire::Beginning::kDeliveryHeader)) ||
        golden_name(type) == name)
      places.push_back({packet});
  }
  return places;
}

Bytes overwritten(Bytes bytes, std::size_t offset, std::size_t size, std::uint64_t value) {
  constexpr std::size_t kMost = sizeof value;
  for (std::size_t i = 0; i < size; ++i)
    bytes.at(offset + i) = static_cast<std::byte>(i < kMost ? value >> (8 * i) : value);
  return bytes;
}

/// The packet with this value in the field, and as long as that makes it.
Bytes changed(const Place& place, const DocumentedField& field, std::uint64_t value) {
  const std::string name = field.full_name();
  const bool opens = name == "Data.flags" && (value & wire::kDataOpening) != 0;
  Bytes bytes = overwritten(opens ? data(true) : place.packet, place.offset + field.offset,
                            field.size, value);
  if (name == "Header.flags" && (value & wire::kAuthenticated) != 0)
    bytes.resize(bytes.size() + wire::trailer_bytes(static_cast<wire::Kind>(bytes[3])));
  if (name == "Column.flags" && value == wire::kColumnPresent)
    bytes.resize(bytes.size() + kBlockBytes);
  if (name == "Shape.columns")
    for (std::uint64_t column = 1; column < value; ++column) bytes = bytes + hex(kDone);
  return with_length(bytes);
}

/// VERSION alone is read whatever its version.
bool is_any_version(const DocumentedField& field, const Place& place) {
  return field.full_name() == "Header.version" &&
         static_cast<wire::Kind>(place.packet[3]) == wire::Kind::kVersions;
}

DropReason verdict(const Bytes& bytes) {
  Packet packet;
  return Packet::parse(bytes, packet);
}

// -------------------------------------------------------------------------- ranges as documented
struct Range {
  std::vector<std::uint64_t> accepted;
  std::vector<std::uint64_t> refused;
  std::string condition;  // what the page says beyond the numbers
};

std::uint64_t highest(std::size_t size) {
  return size >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1;
}

Range interval(std::uint64_t low, std::uint64_t high, std::size_t size, std::string condition) {
  Range range{{low, high}, {}, std::move(condition)};
  if (low > 0) range.refused.push_back(low - 1);
  if (high < highest(size)) range.refused.push_back(high + 1);
  return range;
}

std::uint64_t number(const std::string& text) {
  return std::stoull(text, nullptr, 0);
}

/// Nothing for words that this test does not know.
std::optional<Range> parse_range(const std::string& text, std::size_t size) {
  static const std::regex free("(\\*|any\\b|ignored$|the same$).*");
  static const std::regex one("0x[0-9A-F]+|\\d+");
  static const std::regex many(
      "(0x[0-9A-F]+|\\d+)\\.\\.(0x[0-9A-F]+|\\d+)( · block_elements)?(.*)");
  static const std::regex listed("(\\d+(?:, \\d+)* or \\d+)(.*)");
  std::smatch match;
  if (std::regex_match(text, match, listed)) {
    Range range{{}, {}, match.str(2)};
    static const std::regex digits("\\d+");
    const std::string numbers = match.str(1);
    for (std::sregex_iterator at(numbers.begin(), numbers.end(), digits), end; at != end; ++at)
      range.accepted.push_back(number(at->str()));
    for (std::uint64_t value = 0; value <= range.accepted.back() + 1; ++value)
      if (std::find(range.accepted.begin(), range.accepted.end(), value) == range.accepted.end())
        range.refused.push_back(value);
    return range;
  }
  if (std::regex_match(text, free)) return Range{{0, highest(size)}, {}, ""};
  if (std::regex_match(text, one)) return interval(number(text), number(text), size, "");
  if (!std::regex_match(text, match, many)) return std::nullopt;
  const std::uint64_t factor = match[3].matched ? 4 : 1;
  return interval(number(match.str(1)), factor * number(match.str(2)), size, match.str(4));
}

void check(const DocumentedField& field, const Place& place, const Range& range) {
  for (const std::uint64_t value : range.accepted) {
    CAPTURE(value);
    CHECK(verdict(changed(place, field, value)) == DropReason::kNone);
  }
  for (const std::uint64_t value : range.refused) {
    CAPTURE(value);
    const DropReason reason = verdict(changed(place, field, value));
    CHECK(reason != DropReason::kNone);
    CHECK(reason != DropReason::kBadLength);  // it is the value that is wrong
  }
}

DocumentedField field_of(const std::string& full_name) {
  for (const DocumentedField& field : documented_fields())
    if (field.full_name() == full_name) return field;
  FAIL("docs/protocol.md has no field " << full_name);
  return {};
}

/// A place of the field's whose packet has another value in the field `other` of the same part.
Place beside(const std::string& other, std::uint64_t value) {
  const DocumentedField field = field_of(other);
  Place place = places_of(field.type).back();
  place.packet = overwritten(place.packet, place.offset + field.offset, field.size, value);
  return place;
}

constexpr auto kNoneWide = ~std::uint64_t{0};
constexpr auto kNoneValue = std::uint64_t{kNone};

}  // namespace

TEST_CASE("every range of docs/protocol.md is the codec's, to the last value") {
  // The test `wire` tries them: unknown kinds, every truncation and extension, every bit of it.
  const std::set<std::string> tried_elsewhere{"Header.kind", "Header.length", "Header.integrity"};
  const std::set<std::string> tried_below{
      "Challenge.source_ports",  "Column.index",           "Column.next",
      "KeyValueData.horizon",    "KeyValueData.following", "KeyValueData.run_bytes",
      "RunHeader.first",         "RunHeader.keys",         "RunHeader.escapes",
      "RunHeader.width",         "KeyValueResult.horizon", "KeyValueResult.next",
      "KeyValueResult.run_bytes"};
  const std::set<std::string> conditions_below{"",
                                               ", a power of two",
                                               ", or 0",
                                               ", at most the round",
                                               "; 0 if `index` is none; of DATA 0 or 1",
                                               ", 1..5 where `op_type` or `wire_type` is a float",
                                               "; of KV_DATA 10",
                                               "; 3 where it carries values"};
  for (const DocumentedField& field : documented_fields()) {
    const bool is_part = field.range.empty() || field.range.starts_with("as `");
    if (is_part || tried_elsewhere.contains(field.full_name()) ||
        tried_below.contains(field.full_name()))
      continue;
    CAPTURE(field.full_name(), field.range);
    const auto range = parse_range(field.range, field.size);
    REQUIRE(range);
    CHECK(conditions_below.contains(range->condition));
    const std::vector<Place> places = places_of(field.type);
    REQUIRE_FALSE(places.empty());
    for (const Place& place : places)
      if (!is_any_version(field, place)) check(field, place, *range);
  }
}

TEST_CASE("what ranges say beyond their numbers") {
  const auto tried = [](const std::string& field, const Place& place, const Range& range) {
    CAPTURE(field, field_of(field).range);
    check(field_of(field), place, range);
  };
  SECTION("a history is a power of two") {
    const Range range{{2, 4, 8, 16, 32, 64}, {0, 1, 3, 63}, ""};
    tried("Welcome.history", places_of("Welcome").front(), range);
  }
  SECTION("a group is one of multicast, or none") {
    const Range range{{0, 0xe000'0100, 0xefff'ffff}, {1, 0xe000'00ff, 0xf000'0000}, ""};
    tried("Welcome.group", places_of("Welcome").front(), range);
  }
  SECTION("each lane has source ports of its own") {
    DocumentedField port = field_of("Challenge.source_ports");
    port.size = 2;
    for (std::uint64_t first = 49152; first < 65536; first += 2048, port.offset += 2) {
      Range range{{0, first, first + 2047}, {1, 4748, first - 1}, ""};
      if (first + 2048 < 65536) range.refused.push_back(first + 2048);
      check(port, places_of("Challenge").front(), range);
    }
    CHECK(port.offset == sizeof(wire::Challenge));
  }
  SECTION("a result lags by no more rounds than there were") {
    tried("Result.lag", beside("Result.round", 10), {{0, 10}, {11, 63}, ""});
    tried("Result.lag", beside("Result.round", 0), {{0}, {1}, ""});
  }
  SECTION("floats have no bitwise reductions") {
    constexpr auto kFloat = static_cast<std::uint64_t>(ElementType::kFloat32);
    const Range range{{1, 5}, {0, 6, 8}, ""};
    tried("Descriptor.reduction", beside("Descriptor.op_type", kFloat), range);
    Place place = places_of("Descriptor").front();
    place.packet = overwritten(place.packet, 48 + field_of("Shape.wire_type").offset, 1, kFloat);
    tried("Descriptor.reduction", place, range);
  }
  SECTION("an index is below the block count, or none") {
    const Range range{{0, kBlocks - 1, kNoneValue}, {kBlocks, kNoneValue - 1}, ""};
    tried("Column.index", places_of("Column").front(), range);
  }
  SECTION("the next index is above the current one") {
    const Range after_0{{1, kBlocks - 1, kNoneValue}, {0, kBlocks, kNoneValue - 1}, ""};
    tried("Column.next", places_of("Column").front(), after_0);
    tried("Column.next", beside("Column.index", kBlocks - 1), {{kNoneValue}, {0, 1, 2, 3}, ""});
    tried("Column.next", beside("Column.index", kNoneValue), {{kNoneValue}, {0, 1, 2, 3}, ""});
  }
  SECTION("no block is present, or withheld, where there is none") {
    tried("Column.flags", beside("Column.index", kNoneValue), {{0}, {1, 2, 4}, ""});
  }
  SECTION("keyed pairs are a collective of their own") {
    const Place keyed{golden().at("key_value_data"), sizeof(wire::KeyValueData)};
    tried("Descriptor.collective", keyed, {{10}, {0, 1, 9, 11}, ""});
  }
  SECTION("a keyed round's local keys are below the bound, and rise") {
    // The bound is 18; a run has the keys 1, 8 and 10.
    const Place up{golden().at("key_value_data without a run")};
    tried("KeyValueData.horizon", up, {{0, 17}, {18, kNoneWide}, ""});
    tried("KeyValueData.following", up, {{2, 17, kNoneWide}, {0, 1, 18, kNoneWide - 1}, ""});
    const Place with_run{golden().at("key_value_data")};
    tried("KeyValueData.horizon", with_run, {{0, 2, 17}, {18}, ""});  // its keys may be done
    tried("KeyValueData.following", with_run, {{2, 17, kNoneWide}, {0, 1, 18}, ""});
    const Place down{golden().at("key_value_result")};
    tried("KeyValueResult.horizon", down, {{0, 1}, {2, 4, 18}, ""});
    tried("KeyValueResult.next", down, {{2, 17, kNoneWide}, {0, 1, 18, kNoneWide - 1}, ""});
  }
  SECTION("a run has the size that its header says, and its first key is in range") {
    // Three keys, of which two are told by symbols of 3 bits.
    const Place up = places_of("RunHeader").front(), down = places_of("RunHeader").back();
    tried("RunHeader.first", up, {{0, 1, 17}, {18, kNoneWide}, ""});
    tried("RunHeader.keys", up, {{3}, {0, 2, 4}, ""});
    tried("RunHeader.escapes", up, {{0}, {1, 0xFFFF}, ""});
    tried("RunHeader.width", up, {{1, 4}, {0, 5, 57, 255}, ""});
    tried("RunHeader.first", down, {{0, 10}, {11, 18}, ""});
  }
  SECTION("a run is as long as the packet says") {
    for (const char* name : {"key_value_data", "key_value_result"}) {
      const std::string type = name[10] == 'd' ? "KeyValueData" : "KeyValueResult";
      const Place place{golden().at(name)};
      for (const std::uint64_t bytes : {0, 28, 30})
        CHECK(verdict(changed(place, field_of(type + ".run_bytes"), bytes)) ==
              DropReason::kBadLength);
      // What is there is not a run.
      CHECK(verdict(with_length(overwritten(place.packet, place.packet.size() - 29 + 8, 1, 1))) ==
            DropReason::kBadIndex);
    }
  }
  SECTION("no block of DATA is withheld") {
    tried("Column.flags", {data(false, kFirstBlock), 64}, {{0, 1}, {2, 4}, ""});
  }
}

TEST_CASE("the kinds that carry values may be encrypted, and no other") {
  const DocumentedField flags = field_of("Header.flags");
  for (const Place& place : places_of("Header")) {
    const auto kind = static_cast<wire::Kind>(place.packet[3]);
    CAPTURE(wire::name(kind));
    const Bytes encrypted = changed(place, flags, wire::kAuthenticated | wire::kEncrypted);
    CHECK(verdict(encrypted) ==
          (wire::carries_values(kind) ? DropReason::kNone : DropReason::kBadFlags));
    CHECK(verdict(changed(place, flags, wire::kEncrypted)) == DropReason::kBadFlags);
    if (!wire::carries_values(kind)) continue;
    const std::size_t least = wire::clear_bytes(kind) + sizeof(wire::SessionTrailer);
    CHECK(verdict(with_length(resized(encrypted, least))) == DropReason::kNone);
    CHECK(verdict(with_length(resized(encrypted, least - 1))) == DropReason::kBadLength);
  }
}

}  // namespace wire_ranges_tests
