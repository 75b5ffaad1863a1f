// What a caller asks for in one collective call, and what that means for this rank: which elements
// of the tensor it holds, and which it wants.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sluice/device.hpp>
#include <sluice/error.hpp>
#include <sluice/types.hpp>

#include "common/base/time.hpp"
#include "common/base/wire_type.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"
#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/nonzero_map.hpp"

namespace sluice::worker {

/// When an op that is not done ends its job.
struct OpTimeout {
  std::chrono::milliseconds limit{0};  ///< for messages
  Time due = kNever;                   ///< never: it may take as long as it takes

  /// The time-out of an op that was called at `called`; 0: never.
  static OpTimeout of(Time called, std::chrono::milliseconds limit) {
    return limit.count() == 0 ? OpTimeout{} : OpTimeout{limit, after(called, limit)};
  }
};

/// What a request has, too, if its tensors are on a device.
struct DeviceRequest {
  DeviceTensors* tensors = nullptr;
  DevicePlan plan = {};
  DeviceWords words = {};

  bool has_begun() const { return words.arrived != nullptr; }
};

/// What an op tells its caller about the blocks of the tensor.
struct FoundBlocks {
  /// A bit for each block, which is set if some rank has a value other than zero there. Small
  /// blocks are searched several at a time: then the bits of their neighbours are set, too.
  std::vector<std::uint64_t> nonzero;
  bool has_negative_zero = false;  ///< in a block of this rank's tensor that is zero
};

/// What the caller asks for. The memory stays the engine's until the op's Completion.
///
/// Every collective is a sum of one tensor over the ranks. In a broadcast all ranks except the root
/// hold zeros. In an all_gather each rank holds zeros except in its part. In a reduce_scatter each
/// wants only a part. A rank has in memory only what it holds or wants: `held` and `wanted` tell
/// that. If a collective moves elements, they travel as integers, so that no bit changes.
struct OpRequest {
  wire::Collective collective = wire::Collective::kAllReduce;
  ElementType type = ElementType::kFloat32;  ///< of the caller's tensor
  Reduction reduction = Reduction::kSum;
  const std::byte* input = nullptr;       ///< the elements held
  std::byte* output = nullptr;            ///< those wanted, one range after the other
  std::uint64_t element_count = 0;        ///< of the whole tensor
  std::optional<ElementRange> held = {};  ///< none: the whole tensor
  std::optional<std::vector<ElementRange>> wanted = {};  ///< rising; none: the whole tensor
  std::uint16_t root = 0;
  std::uint16_t layout = 0;
  std::uint16_t block_elements = 0;                    ///< at most; 0: the session's
  std::span<const std::uint64_t> nonzero_blocks = {};  ///< bit per block; empty: search
  /// Bit per block: only these are searched, as all others are +0. Empty: all are.
  std::span<const std::uint64_t> searched_blocks = {};
  /// If not null, the op fills it in. Its bits are as many as the tensor's blocks.
  FoundBlocks* found_blocks = nullptr;
  /// For an op among the ranks of a host: `output` holds zeros already wherever the sum is zero
  /// because no rank that holds the block has it. It may hold -0.0 there, if `input` is the same
  /// memory: the op looks for that.
  bool zeros_are_there = false;
  std::uint64_t tag = 0;
  Encoding encoding = Encoding::kNone;  ///< of a reduction of fp32
  /// The encoding of the hosts' sums, if this is an op among the ranks of a host (never encoded).
  Encoding encoding_between_hosts = Encoding::kNone;
  std::uint64_t rounding_seed = 0;  ///< of a scaled encoding; 0: to nearest
  OpTimeout timeout = {};
  /// The number by which errors name the op, if it is an op among the ranks of a host and a part of
  /// another op; none: its own number.
  std::optional<OpNumber> number_in_errors = {};
  /// If set, `input` and `output` are buffers between a device and us.
  std::optional<DeviceRequest> device = {};
  /// The pairs of a sparse_all_reduce, which has no tensor. Of the members above it uses type,
  /// reduction, tag, encoding and rounding_seed, too.
  std::optional<KeyedRequest> keyed = {};

  /// The type of the elements in the tensor, as far as Sluice reads them.
  ElementType tensor_type() const {
    return wire::moves(collective) ? integer_of(element_bytes(type)) : type;
  }
  /// The type of the elements on the wire.
  WireType wire_type() const { return is_encoded() ? WireType(encoding) : tensor_type(); }
  bool is_encoded() const { return encoding != Encoding::kNone; }

 private:
  static constexpr ElementType integer_of(std::size_t bytes) {
    return bytes == 8   ? ElementType::kInt64
           : bytes == 4 ? ElementType::kInt32
           : bytes == 2 ? ElementType::kInt16
                        : ElementType::kInt8;
  }
};

/// This rank, and how many there are, in the job that runs the op.
struct RankOf {
  std::uint16_t rank = 0;
  std::uint16_t ranks = 1;
};

/// Fills in element_count, held, wanted and layout, by the request's collective and root.
///
/// `counts`: the elements of each part of the tensor. all_gather, gather, scatter and
/// reduce_scatter have one part per rank, all_to_all one from each rank to each,
/// [from * ranks + to]; the other collectives have one part. Throws kInvalidArgument if there are
/// not as many, or more than 2^64 elements in all.
void lay_out(OpRequest& request, RankOf me, std::span<const std::uint64_t> counts);

/// How this session cuts a request that is laid out: for the code that copies its tensors.
DevicePlan device_plan(const OpRequest& request, const Session& session);
/// Starts to copy the tensors of a checked request, if they are on a device.
void begin_copies(OpRequest& request, const Session& session);

/// Why the op cannot run in this session: its tensor has more blocks than there are indices, or a
/// device copies it in other blocks than those of this session. Nothing: it can run.
std::optional<std::string> too_long(const OpRequest& request, const Session& session);

/// Checks a request that is laid out. Throws kInvalidArgument, in the name of `call`, if the
/// session cannot carry it, or its tensors are null or overlap.
void check(const OpRequest& request, const std::string& call, const Session& session);

}  // namespace sluice::worker
