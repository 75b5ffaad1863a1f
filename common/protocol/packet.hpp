// Reading packets. A Packet exists only if everything in the datagram that can be checked by itself
// was validated: magic, version, kind, every length and count, every index within the tensor, every
// enumeration. The engines check what depends on a session (token, epoch, round, whether it fits
// the op).
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/wire_type.hpp"
#include "common/protocol/drop_reason.hpp"
#include "common/protocol/packet_kinds.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

/// The job in a datagram that is not parsed yet; nothing if it is too short.
inline std::optional<std::uint32_t> peek_job(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(wire::Header)) return std::nullopt;
  return reinterpret_cast<const wire::Header*>(bytes.data())->job;
}

/// The fields that a HELLO has in the same place in every version.
struct HelloOfAnyVersion {
  std::uint32_t job = 0;
  std::uint64_t nonce = 0;
};

/// For a datagram that Packet::parse drops as kBadVersion. Nothing if it is not a HELLO, if it is
/// shorter than the VERSION that answers it, or if its length field is wrong.
std::optional<HelloOfAnyVersion> hello_of_another_version(std::span<const std::byte> bytes);

/// A view of a validated datagram; valid as long as the bytes from which it was parsed.
class Packet {
 public:
  /// Sets `packet` and returns kNone; or leaves it, and returns why the bytes are neither a packet
  /// of version 1 nor a VERSION of any version.
  static DropReason parse(std::span<const std::byte> bytes, Packet& packet);

  Packet() = default;  ///< refers to nothing; assign from parse

  wire::Kind kind() const { return static_cast<wire::Kind>(at<wire::Header>(0).kind); }
  std::uint32_t job() const { return at<wire::Header>(0).job; }
  /// The whole datagram.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Without the trailer, if there is one.
  std::span<const std::byte> body() const { return body_; }
  bool has_integrity() const { return at<wire::Header>(0).integrity != 0; }
  bool is_authenticated() const { return body_.size() != bytes_.size(); }
  /// If so, only the beginning was validated, until check_decrypted() has returned kNone.
  bool is_encrypted() const { return is_encrypted_; }
  /// For an encrypted packet whose bytes were decrypted in place: validates the rest.
  DropReason check_decrypted();

  /// The fixed part of this packet; T must be the struct of kind().
  template <class T>
  const T& as() const {
    return at<T>(0);
  }
  const wire::MemberHeader& member() const { return at<wire::MemberHeader>(0); }
  const wire::DeliveryHeader& delivery() const { return at<wire::DeliveryHeader>(0); }

  // DATA and RESULT, including keyed ones, which begin in the same way ------------------------
  const wire::Shape& shape() const { return at<wire::Shape>(shape_offset_); }
  /// The op's descriptor if this is an opening DATA; otherwise null.
  const wire::Descriptor* descriptor() const {
    return descriptor_offset_ == 0 ? nullptr : &at<wire::Descriptor>(descriptor_offset_);
  }
  bool is_keyed() const {
    return kind() == wire::Kind::kKeyValueData || kind() == wire::Kind::kKeyValueResult;
  }
  /// For packets that are not keyed.
  std::span<const wire::Column> columns() const {
    return {&at<wire::Column>(behind_fixed_), shape().columns};
  }
  /// For keyed packets. It can be parsed, and has the rows for its keys; the keys are to be checked
  /// as they are read.
  std::span<const std::byte> run() const { return body_.subspan(behind_fixed_); }
  bool has_blocks() const { return present_bytes_ != 0; }

  /// Calls f(column number, bytes of its block) for each block in the packet, in the order of
  /// columns.
  template <class F>
  void for_each_block(F&& f) const {
    const wire::Shape& s = shape();
    std::span<const std::byte> blocks = body_.subspan(blocks_offset());
    std::uint8_t c = 0;
    for (const wire::Column& column : columns()) {
      if (column.flags == wire::kColumnPresent) {
        const std::size_t size = block_bytes(s, column.index);
        f(c, blocks.first(size));
        blocks = blocks.subspan(size);
      }
      ++c;
    }
  }
  static std::size_t full_block_bytes(const wire::Shape& shape) {
    return WireType(shape.wire_type).bytes(shape.block_elements);
  }
  /// The bytes of block `index` of a tensor of this shape; the last block may be short.
  static std::size_t block_bytes(const wire::Shape& shape, std::uint32_t index);

 private:
  template <class T>
  const T& at(std::size_t offset) const {
    return *reinterpret_cast<const T*>(bytes_.data() + offset);
  }

  std::size_t blocks_offset() const {
    return behind_fixed_ + shape().columns * sizeof(wire::Column);
  }
  DropReason check_header();
  DropReason check_kind();
  /// Checks a packet of the kind whose fixed part is T.
  template <class T>
  DropReason check();
  DropReason check_fixed(std::size_t size) const;
  template <class T>
  DropReason check_flags(std::uint8_t T::*flags, std::uint8_t known) const;
  DropReason check_data(std::size_t fixed_bytes);
  DropReason check_result(std::size_t fixed_bytes);
  bool is_keyed_op() const;
  DropReason check_run(std::uint64_t horizon, std::uint64_t end, std::uint64_t lowest,
                       std::uint32_t run_bytes);
  DropReason check_shape() const;
  DropReason check_descriptor() const;
  DropReason check_blocks(std::uint8_t column_flags);

  std::span<const std::byte> bytes_;
  std::span<const std::byte> body_;
  std::uint16_t shape_offset_ = 0;
  std::uint16_t descriptor_offset_ = 0;
  std::uint16_t behind_fixed_ = 0;
  std::size_t present_bytes_ = 0;
  bool is_encrypted_ = false;
};

/// Calls f with the fixed part of the packet, in the type of its kind.
template <class F>
void visit(const Packet& packet, F&& f) {
  switch (packet.kind()) {
#define SLUICE_VISIT(T, name, beginning, key) \
  case wire::Kind::k##T:                      \
    return f(packet.as<wire::T>());
    SLUICE_WIRE_KINDS(SLUICE_VISIT)
#undef SLUICE_VISIT
    default:
      break;
  }
}

}  // namespace sluice
