// One op of a job whose hosts have several ranks, in three steps:
//
//   gather   the ranks of a host sum among themselves: each rank that carries a share gets the
//            host's sum of that share of the tensor;
//   between  the ranks of all hosts that carry the same share, a rail, sum it through the
//            aggregators;
//   spread   the ranks of a host exchange the shares.
//
// A share is a run of blocks. All collectives work in this way, as each is a sum of one tensor of
// which a rank holds some elements and wants some (op_request.hpp). A host holds what its ranks
// hold, and wants what its ranks want.
//
// A long tensor is cut into chunks, which go through the steps one behind the other: while a chunk
// is between the hosts, a host gathers the next ones and spreads those before.
//
// For a sum of pairs, a share is a range of keys, the same on all hosts, and the steps on the host
// are the two halves of a sum there (host/keyed_sum.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/protocol/session.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/host/engine/shares.hpp"
#include "worker/host/keyed_sum.hpp"

namespace sluice::worker::hierarchy {

/// Whether an op's sum may be computed from the hosts' sums. If not, all ranks use the aggregators,
/// and the steps only show that all ranks have called the op. An example is an average of integers,
/// whose sum may be too large for the type.
bool sums_by_hosts(const OpRequest& request);

/// The least bytes of a chunk for each rail, and the most chunks of a tensor: each chunk costs
/// packets that say where its blocks are (docs/performance.md).
inline constexpr std::uint64_t kMinChunkOfRail = std::uint64_t{1} << 20;
inline constexpr std::uint32_t kMaxChunks = 8;

/// The number of chunks of an op, the same on all ranks.
std::uint32_t chunks_of(const OpRequest& request, const Placement& placement,
                        std::uint64_t min_chunk_of_rail);

/// One chunk of an op.
struct Chunk {
  std::uint32_t number = 0;
  std::uint32_t of = 1;
};

/// The steps of one chunk.
class Steps {
 public:
  /// An op among the ranks of a host, with what each of them holds and wants.
  struct OfHost {
    OpRequest request;
    std::vector<host::Part> parts;
  };

  /// For rank `self`, whose request is laid out by these counts and checked for the session. Throws
  /// kUnavailable if there is no memory for a share.
  Steps(const OpRequest& request, std::span<const std::uint64_t> counts, const Placement& placement,
        Rank self, const Session& session, const Chunk& chunk = {},
        std::shared_ptr<host::PairPool> pairs = std::make_shared<host::PairPool>());

  const OfHost& gather() const { return gather_; }
  /// Nothing on a rank that carries no share. For a sum of pairs it is set once they are gathered.
  const std::optional<OpRequest>& between() const { return between_; }
  const OfHost& spread() const { return spread_; }

  /// For a sum of pairs, this is used in place of gather() and spread(); null for other ops.
  host::KeyedMerge* merge() { return pairs_ ? &pairs_->merge : nullptr; }
  host::KeyedSpread* spread_pairs() { return pairs_ ? &pairs_->spread : nullptr; }
  /// To be called when the first step is done.
  void end_gather();
  /// To be called when the second step is done. Throws kUnavailable if there is no memory for its
  /// pairs.
  void end_between();
  /// The number of blocks in our share.
  std::uint64_t blocks() const { return blocks_; }
  void set_timeout(const OpTimeout& timeout);

 private:
  using Ranges = std::vector<ElementRange>;
  /// What the ranks of a host together hold and want of a chunk.
  struct HostPart {
    std::vector<host::Part> of_rank;
    ElementRange held;  ///< from the first held element to the last; gaps count as zeros
    Ranges wanted;      ///< ascending, with gaps between them

    void clear();  ///< nobody holds or wants anything any more
  };
  /// Memory that the host's other ranks can access, if there is such memory.
  struct Deallocate {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Deallocate>;

  /// State of a sum of pairs.
  struct Pairs {
    Pairs(const OpRequest& request, const Session& session, const host::KeyedRanks& ranks)
        : merge(request, session, ranks), spread(request, session, ranks) {}

    host::KeyedMerge merge;
    host::KeyedSpread spread;
    host::KeyedRange range = {};  // the range that we have merged
    KeyedSums sums = {};          // as they come from the aggregators
  };

  /// The blocks that are not zero, in a tensor that all ranks of the host hold. With them, blocks
  /// that no rank has are read only once.
  struct Found {
    std::uint32_t elements = 0;  // of each block
    ElementRange chunk, share;
    /// Of the tensor: the blocks that some rank of the host has. Later also, in our share, those
    /// that came from other hosts.
    FoundBlocks blocks = {};
    std::vector<std::uint64_t> to_spread = {};  // of the chunk: the blocks of our share
    bool is_spread = false;                     ///< the host wants the whole chunk
    bool is_in_place = false;
  };

  static HostPart of_host(const OpRequest& request, std::span<const std::uint64_t> counts,
                          std::span<const Rank> ranks, std::uint16_t of_job,
                          const ElementRange& chunk);
  Memory allocate(std::uint64_t elements) const;
  void place(const OpRequest& request, const ElementRange& held, const Ranges& wanted);
  void begin_pairs(OpRequest request, const Placement& placement, Rank self,
                   const Session& session);
  static OpRequest between_hosts(OpRequest request);
  void find_blocks(const OpRequest& request, Found found);
  void tell_blocks();

  const std::size_t element_bytes_;
  const std::shared_ptr<host::PairPool> pair_pool_;
  OfHost gather_;
  std::optional<OpRequest> between_;
  OfHost spread_;
  std::uint64_t blocks_ = 0;
  Memory held_, wanted_;          // memory for our share, if it does not lie in the caller's output
  std::unique_ptr<Found> found_;  // null: some rank of the host holds only a part
  std::unique_ptr<Pairs> pairs_;
  KeyedSums no_sums_;  // an empty set, which only shows that all ranks have called the op
};

}  // namespace sluice::worker::hierarchy
