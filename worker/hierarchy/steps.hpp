// One op of a job whose hosts have several ranks, in three steps:
//
//   gather   the ranks of a host sum among themselves: each of those that carry gets the host's sum
//            of its share of the tensor;
//   between  the ranks of all hosts that carry the same share, a rail, sum it through the
//            aggregators;
//   spread   the ranks of a host give each other the shares.
//
// A share is a run of blocks. It does not matter which collective it is: each is a sum of one
// tensor of which a rank holds some elements and wants some (op_request.hpp). A host holds what its
// ranks hold, and wants what they want.
//
// A long tensor is cut into chunks, which take the steps one behind the other: while one is between
// the hosts, a host sums the next ones and spreads those before.
//
// A share of a sum of pairs is a range of keys, the same on all hosts, and the steps on the host
// are the halves of such a sum there (host/keyed_sum.hpp).
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

/// Whether an op's sum may be made of the hosts' sums. Else all ranks go through the aggregators,
/// and the steps show but that all have called it: of integers an average's sum may be too large
/// for their type.
bool sums_by_hosts(const OpRequest& request);

/// So many of the bytes of a chunk are a rail's, at least; and a tensor has so many chunks, at
/// most: each costs packets that say where its blocks are (docs/performance.md).
inline constexpr std::uint64_t kMinChunkOfRail = std::uint64_t{1} << 20;
inline constexpr std::uint32_t kMaxChunks = 8;

/// Of how many chunks an op is, on all ranks alike.
std::uint32_t chunks_of(const OpRequest& request, const Placement& placement,
                        std::uint64_t min_chunk_of_rail);

/// One of the chunks of an op.
struct Chunk {
  std::uint32_t number = 0;
  std::uint32_t of = 1;
};

/// Those of a chunk.
class Steps {
 public:
  /// An op among the ranks of a host, and what each of them holds and wants.
  struct OfHost {
    OpRequest request;
    std::vector<host::Part> parts;
  };

  /// Of rank `self`, whose request is laid out by these counts and checked for the session. Throws
  /// kUnavailable if there is no memory for a share.
  Steps(const OpRequest& request, std::span<const std::uint64_t> counts, const Placement& placement,
        Rank self, const Session& session, const Chunk& chunk = {},
        std::shared_ptr<host::PairPool> pairs = std::make_shared<host::PairPool>());

  const OfHost& gather() const { return gather_; }
  /// None of a rank that carries nothing. Of a sum of pairs it is known once they are gathered.
  const std::optional<OpRequest>& between() const { return between_; }
  const OfHost& spread() const { return spread_; }

  /// In place of gather() and spread(), null: it is no sum of pairs.
  host::KeyedMerge* merge() { return pairs_ ? &pairs_->merge : nullptr; }
  host::KeyedSpread* spread_pairs() { return pairs_ ? &pairs_->spread : nullptr; }
  /// The first step has been done.
  void end_gather();
  /// The second one has. Throws kUnavailable if there is no memory for its pairs.
  void end_between();
  /// Of our share.
  std::uint64_t blocks() const { return blocks_; }
  void set_timeout(const OpTimeout& timeout);

 private:
  using Ranges = std::vector<ElementRange>;
  /// What the ranks of a host hold together, and want of a chunk.
  struct HostPart {
    std::vector<host::Part> of_rank;
    ElementRange held;  ///< from the first to the last: what lies between counts as zero
    Ranges wanted;      ///< rising, apart

    void clear();  ///< nobody holds or wants anything
  };
  /// From memory that the host's other ranks can reach, where there is some.
  struct Deallocate {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Deallocate>;

  /// Of a sum of pairs.
  struct Pairs {
    Pairs(const OpRequest& request, const Session& session, const host::KeyedRanks& ranks)
        : merge(request, session, ranks), spread(request, session, ranks) {}

    host::KeyedMerge merge;
    host::KeyedSpread spread;
    host::KeyedRange range = {};  // that we have merged
    KeyedSums sums = {};          // as they come from the aggregators
  };

  /// Which blocks are not zero, of a tensor that all ranks of the host hold. So blocks that none of
  /// them has are read once.
  struct Found {
    std::uint32_t elements = 0;  // of each
    ElementRange chunk, share;
    /// Of the tensor: those that some rank of the host has; of our share later also those that came
    /// from other hosts.
    FoundBlocks blocks = {};
    std::vector<std::uint64_t> to_spread = {};  // of the chunk: those of our share
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
  Memory held_, wanted_;          // of our share, where it does not lie in the caller's output
  std::unique_ptr<Found> found_;  // null: some rank of the host holds only a part
  std::unique_ptr<Pairs> pairs_;
  KeyedSums no_sums_;  // of pairs that only show that all have called it
};

}  // namespace sluice::worker::hierarchy
