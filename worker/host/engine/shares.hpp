// One op among the ranks of a host: the pieces in which it is summed, the parts of them that each
// rank holds and wants, and the sum of a piece over all ranks' tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/wire_type.hpp"
#include "common/numeric/encoding.hpp"
#include "common/numeric/kernels.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

/// What a rank holds and wants of an op's tensor: see OpRequest.
struct Part {
  std::optional<ElementRange> held = {};
  std::optional<std::vector<ElementRange>> wanted = {};
};

/// One part for each rank; none at all where all ranks hold and want the whole tensor.
std::vector<Part> parts_of(const OpRequest& request, std::span<const std::uint64_t> counts,
                           std::uint16_t ranks);

/// How much of a tensor one rank sums at once. Small tensors are cut into pieces for all ranks.
struct PieceLimits {
  std::size_t least_bytes = std::size_t{4} << 10;
  std::size_t most_bytes = std::size_t{64} << 10;
};

/// What the sums depend on in addition to the op's request.
struct SharesOptions {
  std::vector<Rank> ranks;    ///< of this host, in the job
  std::uint16_t divisor = 1;  ///< of averages: how many ranks the job has
  OpNumber op = 0;
  /// Elements of a block: the unit of encoding and of the search for zeros.
  std::uint32_t block_elements = 256;
  PieceLimits limits = {};
};

/// Where a rank's elements lie. A null pointer is not read, or not written.
struct Elements {
  const std::byte* input = nullptr;  ///< the first held element
  std::byte* output = nullptr;       ///< the first wanted element
  /// Only one piece lies there; both pointers are to its first element, held or not.
  bool is_piece = false;
  /// Which blocks of the piece are not zero; nothing: they are searched.
  std::optional<std::uint64_t> blocks = {};
  bool zeros_are_there = false;  ///< the output holds zeros where all ranks' blocks are zero
};

/// A word with a bit for each block of a piece: all are set.
inline constexpr std::uint64_t kAllBlocks = ~std::uint64_t{0};

/// Bytes that lie side by side in a piece, and also in a rank's tensor.
struct Extent {
  std::uint64_t in_piece = 0;
  std::uint64_t in_tensor = 0;  ///< from the first held element, or the first wanted one
  std::size_t bytes = 0;
};

class Shares {
 public:
  /// `parts` has an entry for each local rank; it is empty where all hold and want the whole
  /// tensor.
  Shares(const OpRequest& request, std::vector<Part> parts, SharesOptions options);

  ElementRange whole() const { return whole_; }
  /// Elements of a block as it is searched and counted. Small blocks are taken together where that
  /// makes no difference.
  std::uint32_t block_elements() const { return block_elements_; }
  std::uint64_t bytes() const { return whole_.end * size_; }
  /// Pieces do not cover what lies before or behind everything that is wanted.
  std::uint64_t pieces() const {
    return (summed_.end - summed_.begin + piece_elements_ - 1) / piece_elements_;
  }
  ElementRange piece(std::uint64_t number) const;
  std::uint64_t held_bytes(LocalRank rank) const;
  std::uint64_t wanted_bytes(LocalRank rank) const;
  bool wants_all(LocalRank rank) const {
    return wanted(rank).size() == 1 && wanted_bytes(rank) == bytes();
  }
  /// How many of the wanted bytes the rank does not hold.
  std::uint64_t lacking_bytes(LocalRank rank) const;

  /// Whether all ranks hold the whole tensor, so that a bitmap of blocks means the same to all.
  bool has_blocks() const { return cuts_.empty(); }
  /// Returns the blocks of a piece that are not zero, and sets whether a zero block contains -0.
  std::uint64_t find_blocks(const ElementRange& piece, const std::byte* input,
                            bool& has_negative_zero) const;
  /// The same, read from a bitmap of the whole tensor with blocks of so many elements.
  std::uint64_t blocks_in(std::span<const std::uint64_t> bitmap, std::uint32_t of_elements,
                          const ElementRange& piece) const;

  /// What the rank holds of these blocks of a range.
  std::vector<Extent> held_extents(LocalRank rank, const ElementRange& range,
                                   std::uint64_t blocks) const;
  /// What the rank wants of them.
  std::vector<Extent> wanted_extents(LocalRank rank, const ElementRange& range,
                                     std::uint64_t blocks) const;

  /// Copies what the rank holds of these blocks of a range to where its piece begins.
  void copy_in(LocalRank rank, const ElementRange& range, const std::byte* input, std::byte* piece,
               std::uint64_t blocks = kAllBlocks) const;
  /// Copies what the rank wants of a piece to its output: the sums of these blocks, and zeros for
  /// the others, unless the output has zeros already.
  void copy_out(LocalRank rank, const ElementRange& range, const std::byte* piece,
                std::byte* output, std::uint64_t blocks = kAllBlocks,
                bool zeros_are_there = false) const;

  /// Adds what the ranks hold of a piece, lowest rank first, and stores the sums where they are
  /// wanted. Encoded elements are rounded as if they had travelled. Blocks that are zero on every
  /// rank are not added, and are not written where the output holds zeros. Returns the blocks that
  /// are not zero on some rank. If has_blocks(), it adds to `counts` how many blocks are not zero:
  /// by rank, and in the last place those of the sums. `sums`, unless null, receives the sums of
  /// the whole piece.
  std::uint64_t sum(const ElementRange& piece, std::span<const Elements> of_rank,
                    std::span<std::uint64_t> counts, std::byte* sums = nullptr);
  /// Whether a zero block of the rank contains -0 in that range; only if has_blocks().
  bool has_negative_zero(LocalRank rank) const {
    return at_.holder_of[rank] && at_.holder_of[rank]->has_negative_zero;
  }

 private:
  /// A rank that holds a segment of a piece. All elements of a segment have the same holders.
  struct Holder {
    const std::byte* at = nullptr;     ///< its first element
    std::uint64_t nonzero_blocks = 0;  ///< bits as in the piece
    bool has_negative_zero = false;    ///< a zero block contains -0
    Rank rank = {};
  };
  struct Segment {
    ElementRange piece;
    std::span<const Elements> of_rank;
    std::span<std::uint64_t> counts;
    std::byte* sums = nullptr;  // those of the piece
    ElementRange range;
    std::vector<Holder> holders;     // lowest rank first
    std::vector<Holder*> holder_of;  // by rank; null: the rank does not hold it
  };
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };

  ElementRange summed() const;
  ElementRange held(LocalRank rank) const;
  std::span<const ElementRange> wanted(LocalRank rank) const;
  template <class F>
  void for_each_wanted(LocalRank rank, const ElementRange& range, F&& f) const;
  template <class F>
  void for_each_output(const ElementRange& range, F&& f) const;
  void begin_segment(const ElementRange& range);
  std::uint64_t sum_segment();
  void search(Holder& holder) const;
  template <class F>
  void for_each_run(const ElementRange& range, std::uint64_t blocks, F&& f) const;
  template <class F>
  void for_each_held_extent(LocalRank rank, const ElementRange& range, std::uint64_t blocks,
                            F&& f) const;
  template <class F>
  void for_each_wanted_extent(LocalRank rank, const ElementRange& range, std::uint64_t blocks,
                              F&& f) const;
  void sum_blocks(std::uint32_t first, const ElementRange& range);
  std::size_t add(std::uint32_t first, const ElementRange& range);
  numeric::Rounding rounding(std::uint32_t by, const ElementRange& range) const;
  void write_zeros(const ElementRange& range);

  const ElementType type_;
  const std::size_t size_;              // of one element
  const std::size_t accumulator_size_;  // of one element's accumulator
  const ElementRange whole_;
  const std::vector<Part> parts_;
  const SharesOptions options_;
  const WireType wire_type_;
  const std::uint64_t rounding_seed_;
  const bool is_encoded_;
  const numeric::BlockReduction& kernels_;
  const std::uint32_t block_elements_;
  const ElementRange summed_;
  const std::uint64_t piece_elements_;
  std::vector<std::uint64_t> cuts_;  // ascending: where a rank's held elements begin or end
  Segment at_;                       // the segment that is summed
  std::unique_ptr<std::byte, FreeAligned> accumulator_;
  std::vector<std::byte> encoded_, decoded_;  // one block each
};

}  // namespace sluice::worker::host
