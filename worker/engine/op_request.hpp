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

  /// Of an op that was called then; 0: never.
  static OpTimeout of(Time called, std::chrono::milliseconds limit) {
    return limit.count() == 0 ? OpTimeout{} : OpTimeout{limit, after(called, limit)};
  }
};

/// Of tensors that lie on a device.
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
/// Every collective is a sum of one tensor over the ranks: of a broadcast all ranks but the root
/// hold zeros, of an all_gather each holds zeros but for its part; of a reduce_scatter each wants
/// but a part. What a rank neither holds nor wants is not in its memory: `held` and `wanted` tell
/// what is. Where elements are moved, they travel as integers, so that every bit comes through.
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
  /// Of an op among the ranks of a host: `output` holds zeros already wherever the sum is zero
  /// because no rank that holds the block has it. It may hold -0.0 there, if `input` is the same
  /// memory: the op looks for that.
  bool zeros_are_there = false;
  std::uint64_t tag = 0;
  Encoding encoding = Encoding::kNone;  ///< of a reduction of fp32
  /// Of the hosts' sums, where this is an op among the ranks of a host, which is not encoded.
  Encoding encoding_between_hosts = Encoding::kNone;
  std::uint64_t rounding_seed = 0;  ///< of a scaled encoding; 0: to nearest
  OpTimeout timeout = {};
  /// By which errors name it, where this is an op among the ranks of a host that is a part of
  /// another; none: by its own number.
  std::optional<OpNumber> number_in_errors = {};
  /// `input` and `output` are what passes between a device and us.
  std::optional<DeviceRequest> device = {};
  /// Of a sparse_all_reduce, which has no tensor: type, reduction, tag, encoding and rounding_seed
  /// above count for it, too.
  std::optional<KeyedRequest> keyed = {};

  /// Of the elements in the tensor, as far as Sluice looks at them.
  ElementType tensor_type() const {
    return wire::moves(collective) ? integer_of(element_bytes(type)) : type;
  }
  /// Of the elements on the wire.
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

/// How a request that is laid out is cut in this session: for whoever copies its tensors.
DevicePlan device_plan(const OpRequest& request, const Session& session);
/// Of a request that was checked: has its tensors copied, if they lie on a device.
void begin_copies(OpRequest& request, const Session& session);

/// Why the blocks that an op has in this session are too small for a tensor so long: their indices
/// could not tell them apart; or not those in which a device copies it. Nothing: they are neither.
std::optional<std::string> too_long(const OpRequest& request, const Session& session);

/// Of a request that is laid out: throws kInvalidArgument, in the name of `call`, for what the
/// session cannot carry, and for tensors that are null or overlap.
void check(const OpRequest& request, const std::string& call, const Session& session);

}  // namespace sluice::worker
