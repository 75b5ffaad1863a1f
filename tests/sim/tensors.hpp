// The ranks' data, and the correct results from an independent scalar reference in rank order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sluice/types.hpp>

#include "common/protocol/wire.hpp"

namespace sluice::sim {

class Random;

/// One collective call. It is the same on all ranks, unless there is a fault.
struct OpSpec {
  wire::Collective collective = wire::Collective::kAllReduce;
  ElementType type = ElementType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::uint64_t element_count = 0;
  std::uint16_t root = 0;
  /// If the tensor is cut: the elements of each part; their sum is element_count.
  std::vector<std::uint64_t> counts = {};
  std::uint16_t block_elements = 0;  ///< wanted number; 0: as many as the session has
  std::uint64_t tag = 0;
  Encoding encoding = Encoding::kNone;
  std::uint64_t rounding_seed = 0;
  std::uint64_t number = 0;  ///< the op's number in its job
  std::uint64_t seed = 0;    ///< for the data
  double density = 1;        ///< of each rank; negative: each rank has its own
  int lone_owner = -1;       ///< this rank owns nearly all blocks, the others hardly any
  bool overlap = false;      ///< all ranks have the same non-zero blocks
  bool poisoned = false;     ///< ranks disagree about it, so it must fail
  // Of keyed pairs. The keys are drawn from element_count / row_elements keys.
  std::uint64_t key_bound = 0;
  std::uint16_t row_elements = 1;
  double threshold = 0;
};
inline bool is_keyed(const OpSpec& op) {
  return op.collective == wire::Collective::kSparseAllReduce;
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
/// What a rank has values for.
Range held_by(const OpSpec& op, unsigned rank, unsigned ranks);
/// What a rank gets.
std::vector<Range> wanted_by(const OpSpec& op, unsigned rank, unsigned ranks);
/// The elements of these ranges, one after the other; and back to the tensor.
std::vector<std::byte> pick(std::span<const std::byte> tensor, const std::vector<Range>& ranges,
                            ElementType type);
void put(std::span<const std::byte> picked, const std::vector<Range>& ranges, ElementType type,
         std::span<std::byte> tensor);

/// For each block, whether it has an element of these ranges.
std::vector<bool> blocks_of(const std::vector<Range>& ranges, std::size_t blocks,
                            std::uint32_t block_elements);

/// Whether elements are moved, as integers, and not reduced.
bool moves(const OpSpec& op);

/// For an op whose collective, type and reduction are drawn.
void draw_encoding(Random& random, OpSpec& op);

/// A rank's side of an op.
struct Tensor {
  std::vector<std::byte> data;        ///< the whole tensor; zeros where the rank holds nothing
  std::vector<bool> travels;          ///< per block: it is non-zero, or the bitmap says so
  std::vector<std::uint64_t> bitmap;  ///< empty: the engine searches
  bool in_place = true;
};

Tensor make_tensor(const OpSpec& op, unsigned rank, unsigned ranks, std::uint32_t block_elements);

/// Rounds a block, for a rank or for the aggregator.
struct Rounder {
  std::uint64_t block = 0;
  std::uint64_t by = 256;
};
/// A block of an op, or the rows of a chunk, in the form in which it arrives.
std::vector<std::byte> travelled(const OpSpec& op, const Rounder& rounder,
                                 std::span<const std::byte> block);

/// The whole result, and for each block whether any rank has sent it.
struct Outcome {
  std::vector<std::byte> data;
  std::vector<bool> travels;
  std::vector<std::vector<bool>> of_host;  ///< the same by host, if hosts sum first
};
Outcome reduce(const OpSpec& op, unsigned ranks, std::uint32_t block_elements);

/// Which ranks are on which host, and what they carry; written independently of the library.
class HostPlan {
 public:
  /// By rank: what it says of its host.
  explicit HostPlan(const std::vector<std::uint64_t>& hosts);

  std::size_t hosts() const { return ranks_of_.size(); }
  unsigned ranks() const { return static_cast<unsigned>(host_of_.size()); }
  std::size_t host_of(unsigned rank) const { return host_of_[rank]; }
  const std::vector<unsigned>& ranks_of(std::size_t host) const { return ranks_of_[host]; }
  std::size_t rails() const;
  /// For each block of a tensor with so many blocks and chunks, whether the rank carries it.
  std::vector<bool> share_of(unsigned rank, std::size_t blocks, std::size_t chunks) const;

 private:
  std::vector<std::vector<unsigned>> ranks_of_;  // hosts in the order of their lowest ranks
  std::vector<std::size_t> host_of_;
};

/// Whether hosts sum it first.
bool sums_by_hosts(const OpSpec& op);
/// Reduces on each host in rank order, then the hosts in their order.
Outcome reduce_by_hosts(const OpSpec& op, const HostPlan& hosts, std::uint32_t block_elements);

/// A rank's side of a keyed op.
struct Pairs {
  std::vector<std::uint64_t> keys;
  std::vector<std::byte> rows;
};
Pairs make_pairs(const OpSpec& op, unsigned rank);

/// The whole result: a rank that lacks a key adds nothing to its sum.
struct PairSums : Pairs {
  /// Classes: down to 1/2, 1/4, 1/8 of the threshold, and less.
  std::array<std::uint64_t, 4> rejected = {};
};
PairSums sum_pairs(const OpSpec& op, unsigned ranks, unsigned chunk_bits);
PairSums sum_pairs_by_hosts(const OpSpec& op, const HostPlan& hosts, unsigned chunk_bits);

/// Whether the bits are equal; any NaN equals any other.
bool same(std::span<const std::byte> a, std::span<const std::byte> b, ElementType type);

}  // namespace sluice::sim
