// Where what goes by reference lies in shared memory: a rank's blocks, and an aggregator's results
// (docs/protocol.md, "Blocks by reference").
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/session.hpp"

namespace sluice {

/// A rank's blocks for the round that it awaits on each stream, each where its column has room. One
/// slot per stream: what was sent for a round is needed no more once its result is applied. Behind
/// them the rank says when the job has ended for it: from then on tensors that it referred to may
/// hold anything.
template <class Byte>
class ContributionSlots {
 public:
  ContributionSlots() = default;
  /// `region` has bytes_for(session) at least, and begins where a page does.
  ContributionSlots(std::span<Byte> region, const Session& session)
      : region_(region.first(bytes_for(session))) {
    assert(region.size() >= bytes_for(session));
  }

  static constexpr std::size_t bytes_for(const Session& session) {
    return session.streams * limits::kReferencedRoundBytes + kEndBytes;
  }

  std::span<Byte> at(StreamId stream) const {
    assert((stream.value + 1) * limits::kReferencedRoundBytes + kEndBytes <= region_.size());
    return region_.subspan(stream.value * limits::kReferencedRoundBytes,
                           limits::kReferencedRoundBytes);
  }

  /// To be said before a tensor is anybody else's.
  void end() const {
    __atomic_store_n(ended(), std::uint32_t{1}, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  /// To be asked after tensors were read: if not, they held what they should.
  bool has_ended() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return __atomic_load_n(ended(), __ATOMIC_RELAXED) != 0;
  }

 private:
  static constexpr std::size_t kEndBytes = 4096;  // a page, for the regions' lengths

  auto* ended() const {
    assert(region_.size() >= kEndBytes);
    using Word = std::conditional_t<std::is_const_v<Byte>, const std::uint32_t, std::uint32_t>;
    return reinterpret_cast<Word*>(region_.data() + (region_.size() - kEndBytes));
  }

  std::span<Byte> region_;
};

/// A whole RESULT: the packet, as it is sent to those who lack a sum, and what its columns refer
/// to.
template <class Byte>
struct ResultSlot {
  std::span<Byte> sums;
  std::span<Byte> packet;
};

/// A shard's results of H rounds, on the streams that it serves. A slot is written again H rounds
/// later, when every rank has applied what it held (rule 15 b).
template <class Byte>
class ResultSlots {
 public:
  ResultSlots() = default;
  /// `region` has bytes_for(session) at least.
  ResultSlots(std::span<Byte> region, const Session& session)
      : region_(region.first(bytes_for(session))),
        shards_(session.shards),
        history_(session.history) {
    assert(region.size() >= bytes_for(session));
  }

  static constexpr std::size_t bytes_for(const Session& session) {
    return std::size_t{session.streams_of(session.shard)} * session.history * kSlotBytes;
  }

  ResultSlot<Byte> at(StreamId stream, Round round) const {
    const std::size_t slot =
        std::size_t{stream.value} / shards_ * history_ + round.value % history_;
    assert((slot + 1) * kSlotBytes <= region_.size());
    const std::span<Byte> bytes = region_.subspan(slot * kSlotBytes, kSlotBytes);
    return {bytes.first(limits::kReferencedRoundBytes),
            bytes.subspan(limits::kReferencedRoundBytes)};
  }

 private:
  static constexpr std::size_t kSlotBytes =
      limits::kReferencedRoundBytes + limits::kReferencedResultBytes;

  std::span<Byte> region_;
  std::size_t shards_ = 1;
  std::size_t history_ = 1;
};

}  // namespace sluice
