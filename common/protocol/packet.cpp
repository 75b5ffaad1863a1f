#include "common/protocol/packet.hpp"

#include <algorithm>
#include <bit>

#include "common/base/multicast_address.hpp"
#include "common/base/source_ports.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/protection.hpp"

namespace sluice {
namespace {

std::uint32_t block_count(const wire::Shape& shape) {
  const std::uint64_t elements = shape.element_count;
  return static_cast<std::uint32_t>((elements + shape.block_elements - 1) / shape.block_elements);
}

bool is_index(std::uint32_t index, std::uint32_t blocks) {
  return index == kNoBlock.value || index < blocks;
}

bool is_lane_count(std::uint16_t lanes) {
  return lanes >= 1 && lanes <= limits::kMaxLanes;
}

bool are_source_ports(std::span<const wire::U16, limits::kMaxLanes> ports) {
  for (std::size_t lane = 0; lane < ports.size(); ++lane)
    if (ports[lane] != 0 && !is_source_port_of(lane, ports[lane])) return false;
  return true;
}

}  // namespace

std::optional<HelloOfAnyVersion> hello_of_another_version(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(wire::Versions)) return std::nullopt;
  // They begin in the same way.
  const auto& hello = *reinterpret_cast<const wire::Versions*>(bytes.data());
  const wire::Header& header = hello.header;
  if (header.magic != wire::kMagic || header.version == wire::kVersion ||
      header.kind != static_cast<std::uint8_t>(wire::Kind::kHello) || header.length != bytes.size())
    return std::nullopt;
  return HelloOfAnyVersion{header.job, hello.nonce};
}

std::size_t Packet::block_bytes(const wire::Shape& shape, std::uint32_t index) {
  const std::uint64_t begin = std::uint64_t{index} * shape.block_elements;
  const std::uint64_t elements =
      std::min<std::uint64_t>(shape.block_elements, shape.element_count - begin);
  return WireType(shape.wire_type).bytes(elements);
}

DropReason Packet::parse(std::span<const std::byte> bytes, Packet& packet) {
  Packet candidate;
  candidate.bytes_ = bytes;
  DropReason reason = candidate.check_header();
  if (reason == DropReason::kNone && !candidate.is_encrypted_) reason = candidate.check_kind();
  if (reason == DropReason::kNone) packet = candidate;
  return reason;
}

DropReason Packet::check_decrypted() {
  is_encrypted_ = false;
  return check_kind();
}

DropReason Packet::check_header() {
  if (bytes_.size() < sizeof(wire::Header)) return DropReason::kTooShort;
  const auto& header = at<wire::Header>(0);
  if (header.magic != wire::kMagic) return DropReason::kBadMagic;
  if (header.version != wire::kVersion && kind() != wire::Kind::kVersions)
    return DropReason::kBadVersion;
  if (header.length != bytes_.size()) return DropReason::kBadLength;
  if ((header.flags & ~(wire::kAuthenticated | wire::kEncrypted)) != 0)
    return DropReason::kBadFlags;
  if (header.integrity != 0 && header.integrity != integrity_of(bytes_))
    return DropReason::kBadIntegrity;
  const bool authenticated = (header.flags & wire::kAuthenticated) != 0;
  const std::size_t trailer = authenticated ? wire::trailer_bytes(kind()) : 0;
  if (bytes_.size() < sizeof(wire::Header) + trailer) return DropReason::kBadLength;
  body_ = bytes_.first(bytes_.size() - trailer);
  is_encrypted_ = (header.flags & wire::kEncrypted) != 0;
  if (!is_encrypted_) return DropReason::kNone;
  if (!authenticated || !wire::carries_values(kind())) return DropReason::kBadFlags;
  return body_.size() >= wire::clear_bytes(kind()) ? DropReason::kNone : DropReason::kBadLength;
}

DropReason Packet::check_fixed(std::size_t size) const {
  return body_.size() == size ? DropReason::kNone : DropReason::kBadLength;
}

template <class T>
DropReason Packet::check_flags(std::uint8_t T::*flags, std::uint8_t known) const {
  if (const auto bad = check_fixed(sizeof(T)); bad != DropReason::kNone) return bad;
  return (as<T>().*flags & ~known) == 0 ? DropReason::kNone : DropReason::kBadFlags;
}

// ------------------------------------------------------------------------------ kind by kind
template <class T>
DropReason Packet::check() {
  return check_fixed(sizeof(T));
}

template <>
DropReason Packet::check<wire::Join>() {
  return check_flags(&wire::Join::flags,
                     wire::kJoinNoProgress | wire::kJoinAuthenticate | wire::kJoinEncrypt);
}

template <>
DropReason Packet::check<wire::Status>() {
  return check_flags(&wire::Status::live, 1);
}

template <>
DropReason Packet::check<wire::Leave>() {
  if (const auto bad = check_flags(&wire::Leave::abort, 1); bad != DropReason::kNone) return bad;
  const auto& leave = as<wire::Leave>();
  const bool known = leave.reason <= wire::kLastAbortReason && leave.field <= wire::kLastField;
  return known ? DropReason::kNone : DropReason::kBadEnumeration;
}

template <>
DropReason Packet::check<wire::Data>() {
  if (const auto bad = check_data(sizeof(wire::Data)); bad != DropReason::kNone) return bad;
  if (is_keyed_op()) return DropReason::kBadEnumeration;
  return check_blocks(wire::kColumnPresent);
}

template <>
DropReason Packet::check<wire::KeyValueData>() {
  if (const auto bad = check_data(sizeof(wire::KeyValueData)); bad != DropReason::kNone) return bad;
  if (descriptor() != nullptr && !is_keyed_op()) return DropReason::kBadEnumeration;
  const auto& data = as<wire::KeyValueData>();
  return check_run(data.horizon, data.following, kNoKey, data.run_bytes);
}

template <>
DropReason Packet::check<wire::Result>() {
  if (const auto bad = check_result(sizeof(wire::Result)); bad != DropReason::kNone) return bad;
  return check_blocks(wire::kColumnPresent | wire::kColumnWithheld);
}

template <>
DropReason Packet::check<wire::KeyValueResult>() {
  if (const auto bad = check_result(sizeof(wire::KeyValueResult)); bad != DropReason::kNone)
    return bad;
  const auto& result = as<wire::KeyValueResult>();
  return check_run(result.horizon, result.next, result.horizon, result.run_bytes);
}

template <>
DropReason Packet::check<wire::Challenge>() {
  if (const auto bad = check_fixed(sizeof(wire::Challenge)); bad != DropReason::kNone) return bad;
  const auto& challenge = as<wire::Challenge>();
  const bool possible = is_lane_count(challenge.lanes) && are_source_ports(challenge.source_ports);
  return possible ? DropReason::kNone : DropReason::kBadShape;
}

template <>
DropReason Packet::check<wire::Welcome>() {
  if (const auto bad =
          check_flags(&wire::Welcome::flags, wire::kWelcomeResume | wire::kWelcomeAuthenticate |
                                                 wire::kWelcomeEncrypt | wire::kWelcomeHosts);
      bad != DropReason::kNone)
    return bad;
  const auto& w = as<wire::Welcome>();
  const bool possible =
      w.streams >= 1 && w.streams <= wire::kMaxStreams && w.history >= 2 &&
      w.history <= wire::kMaxHistory && std::has_single_bit(w.history) && w.block_elements >= 1 &&
      w.block_elements <= wire::kMaxBlockElements && w.payload_bytes >= wire::kMinPayload &&
      w.payload_bytes <= wire::kMaxPayload && is_lane_count(w.lanes) &&
      (w.group == 0 || (is_multicast(w.group) && !is_link_local_multicast(w.group)));
  return possible ? DropReason::kNone : DropReason::kBadShape;
}

template <>
DropReason Packet::check<wire::Abort>() {
  if (body_.size() != sizeof(wire::Abort)) return DropReason::kBadLength;
  const auto& abort = as<wire::Abort>();
  const bool known = abort.reason >= 1 && abort.reason <= wire::kLastAbortReason &&
                     abort.field <= wire::kLastField;
  return known ? DropReason::kNone : DropReason::kBadEnumeration;
}

DropReason Packet::check_kind() {
  switch (kind()) {
#define SLUICE_CHECK_KIND(T, name, beginning, key) \
  case wire::Kind::k##T:                           \
    return check<wire::T>();
    SLUICE_WIRE_KINDS(SLUICE_CHECK_KIND)
#undef SLUICE_CHECK_KIND
  }
  return DropReason::kBadKind;
}

// ------------------------------------------------------------------------- parts of stream packets
/// Checks what comes before columns or a run, which are checked later.
DropReason Packet::check_data(std::size_t fixed_bytes) {
  if (body_.size() < fixed_bytes) return DropReason::kBadLength;
  const auto& data = as<wire::Data>();
  if ((data.flags & ~(wire::kDataOpening | wire::kDataAsk)) != 0) return DropReason::kBadFlags;
  shape_offset_ = offsetof(wire::Data, shape);
  behind_fixed_ = static_cast<std::uint16_t>(fixed_bytes);
  if ((data.flags & wire::kDataOpening) == 0) return DropReason::kNone;
  if (body_.size() < fixed_bytes + sizeof(wire::Descriptor)) return DropReason::kBadLength;
  descriptor_offset_ = behind_fixed_;
  behind_fixed_ = static_cast<std::uint16_t>(fixed_bytes + sizeof(wire::Descriptor));
  return check_descriptor();
}

DropReason Packet::check_result(std::size_t fixed_bytes) {
  if (body_.size() < fixed_bytes) return DropReason::kBadLength;
  const auto& result = as<wire::Result>();
  if (result.completing_rank >= kMaxRanks) return DropReason::kBadIndex;
  if (result.lag >= wire::kMaxHistory || result.lag > result.round) return DropReason::kBadIndex;
  shape_offset_ = offsetof(wire::Result, shape);
  behind_fixed_ = static_cast<std::uint16_t>(fixed_bytes);
  return DropReason::kNone;
}

bool Packet::is_keyed_op() const {
  return descriptor() != nullptr &&
         wire::Collective{descriptor()->collective} == wire::Collective::kSparseAllReduce;
}

/// Checks a run of a round that begins at the local key `horizon`: it has the size that it says,
/// and its first key is below `end`, and not below `lowest` unless that is kNoKey. Whoever reads
/// the keys checks the others.
DropReason Packet::check_run(std::uint64_t horizon, std::uint64_t end, std::uint64_t lowest,
                             std::uint32_t run_bytes) {
  const wire::Shape& s = shape();
  if (!WireType(s.wire_type).is_valid()) return DropReason::kBadEnumeration;
  if (s.element_count == 0 || s.element_count == kNoKey || s.block_elements == 0 ||
      s.columns > kMostChunkBits)
    return DropReason::kBadShape;
  const std::uint64_t bound = s.element_count;
  if (horizon >= bound || end <= horizon || (end >= bound && end != kNoKey))
    return DropReason::kBadIndex;
  present_bytes_ = run_bytes;
  if (body_.size() - behind_fixed_ != run_bytes) return DropReason::kBadLength;
  if (run().empty()) return DropReason::kNone;
  const auto view = RunView::parse(run());
  const RunFormat format(s.columns, s.block_elements, WireType(s.wire_type));
  if (!view || !view->may_have_rows(format)) return DropReason::kBadIndex;
  if (view->first >= std::min(end, bound) || (lowest != kNoKey && view->first < lowest))
    return DropReason::kBadIndex;
  return DropReason::kNone;
}

DropReason Packet::check_shape() const {
  const wire::Shape& s = shape();
  if (!WireType(s.wire_type).is_valid()) return DropReason::kBadEnumeration;
  if (s.columns == 0 || s.columns > wire::kMaxColumns || s.block_elements == 0 ||
      s.block_elements > wire::kMaxBlockElements ||
      s.element_count > max_element_count(s.block_elements))
    return DropReason::kBadShape;
  return DropReason::kNone;
}

DropReason Packet::check_descriptor() const {
  const wire::Descriptor& d = *descriptor();
  const auto reduction = static_cast<Reduction>(d.reduction);
  const bool known = is_valid(static_cast<ElementType>(d.op_type), reduction) &&
                     is_valid(WireType(shape().wire_type).element(), reduction) &&
                     is_valid(static_cast<wire::Collective>(d.collective));
  if (!known) return DropReason::kBadEnumeration;
  return (d.flags & ~wire::kWantsPart) == 0 ? DropReason::kNone : DropReason::kBadFlags;
}

DropReason Packet::check_blocks(std::uint8_t column_flags) {
  if (const auto bad = check_shape(); bad != DropReason::kNone) return bad;
  const wire::Shape& s = shape();
  if (body_.size() < blocks_offset()) return DropReason::kBadLength;
  const std::uint32_t blocks = block_count(s);
  const WireType wire_type(s.wire_type);
  for (const wire::Column& column : columns()) {
    if ((column.flags & ~column_flags) != 0) return DropReason::kBadFlags;
    if ((column.flags & (column.flags - 1)) != 0) return DropReason::kBadFlags;  // at most one
    const std::uint32_t index = column.index;
    const std::uint32_t next = column.next;
    if (!is_index(index, blocks) || !is_index(next, blocks)) return DropReason::kBadIndex;
    if (next <= index && next != kNoBlock.value) return DropReason::kBadIndex;
    if (column.flags != 0 && index == kNoBlock.value) return DropReason::kBadIndex;
    if (wire_type.is_scaled() && column.flags != 0 && !wire_type.is_scale(column.scale))
      return DropReason::kBadShape;
    if (column.flags == wire::kColumnPresent) present_bytes_ += block_bytes(s, index);
  }
  return check_fixed(blocks_offset() + present_bytes_);
}

}  // namespace sluice
