// One op among the ranks of a host: the pieces in which it is summed, what each rank holds and
// wants of them, and the sum of a piece over all ranks' tensors.
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

/// Of each of so many ranks; none where all hold and want the whole tensor.
std::vector<Part> parts_of(const OpRequest& request, std::span<const std::uint64_t> counts,
                           std::uint16_t ranks);

/// How much of a tensor one rank sums at once. Small tensors are cut into pieces for all ranks.
struct PieceLimits {
  std::size_t least_bytes = std::size_t{4} << 10;
  std::size_t most_bytes = std::size_t{64} << 10;
};

/// What the sums of an op depend on beside its request.
struct SharesOptions {
  std::vector<Rank> ranks;    ///< of this host, in the job
  std::uint16_t divisor = 1;  ///< of averages: how many ranks the job has
  OpNumber op = 0;
  /// Of a block in which the op's elements are encoded, or not, if they are all zero.
  std::uint32_t block_elements = 256;
  PieceLimits limits = {};
};

/// Where a rank's elements lie. Null: they are not read, or not written.
struct Elements {
  const std::byte* input = nullptr;  ///< the first one held
  std::byte* output = nullptr;       ///< the first one wanted
  bool is_piece = false;  ///< of one piece: both point to its first element, held or wanted or not
  std::optional<std::uint64_t> blocks = {};  ///< of the piece, that are not zero; none: search
  bool zeros_are_there = false;              ///< in the output, where all ranks' blocks are zero
};

/// A bit for each block of a piece; all.
inline constexpr std::uint64_t kAllBlocks = ~std::uint64_t{0};

/// Bytes that are neighbours in a piece, and in a rank's tensor.
struct Extent {
  std::uint64_t in_piece = 0;
  std::uint64_t in_tensor = 0;  ///< from the first element held, or wanted
  std::size_t bytes = 0;
};

class Shares {
 public:
  /// `parts`: of each local rank; none where all hold and want the whole tensor.
  Shares(const OpRequest& request, std::vector<Part> parts, SharesOptions options);

  ElementRange whole() const { return whole_; }
  /// Of a block as it is searched and counted: small ones are taken together where that makes no
  /// difference.
  std::uint32_t block_elements() const { return block_elements_; }
  std::uint64_t bytes() const { return whole_.end * size_; }
  /// What lies before or behind all that is wanted is in none of them.
  std::uint64_t pieces() const {
    return (summed_.end - summed_.begin + piece_elements_ - 1) / piece_elements_;
  }
  ElementRange piece(std::uint64_t number) const;
  std::uint64_t held_bytes(LocalRank rank) const;
  std::uint64_t wanted_bytes(LocalRank rank) const;
  bool wants_all(LocalRank rank) const {
    return wanted(rank).size() == 1 && wanted_bytes(rank) == bytes();
  }
  /// Of these what it does not hold.
  std::uint64_t lacking_bytes(LocalRank rank) const;

  /// Whether all ranks hold the whole tensor, so that blocks have a meaning for all.
  bool has_blocks() const { return cuts_.empty(); }
  /// The blocks of a piece that are not zero; whether another one has a -0.
  std::uint64_t find_blocks(const ElementRange& piece, const std::byte* input,
                            bool& has_negative_zero) const;
  /// The same, by a bitmap of the whole tensor in blocks of so many elements.
  std::uint64_t blocks_in(std::span<const std::uint64_t> bitmap, std::uint32_t of_elements,
                          const ElementRange& piece) const;

  /// What the rank holds of a range, of these blocks alone.
  std::vector<Extent> held_extents(LocalRank rank, const ElementRange& range,
                                   std::uint64_t blocks) const;
  /// The same of what it wants.
  std::vector<Extent> wanted_extents(LocalRank rank, const ElementRange& range,
                                     std::uint64_t blocks) const;

  /// What the rank holds of a range, of these blocks alone, goes to where its piece begins.
  void copy_in(LocalRank rank, const ElementRange& range, const std::byte* input, std::byte* piece,
               std::uint64_t blocks = kAllBlocks) const;
  /// What the rank wants of it goes from there to its output: sums of these blocks, and zeros in
  /// place of the others, unless they are there.
  void copy_out(LocalRank rank, const ElementRange& range, const std::byte* piece,
                std::byte* output, std::uint64_t blocks = kAllBlocks,
                bool zeros_are_there = false) const;

  /// Adds what the ranks hold of a piece, lowest rank first, and stores the sums into what they
  /// want; what is encoded is rounded as if it had travelled. Blocks that are zero on every rank
  /// are not added, and not written where the output holds zeros. Returns the blocks that are not
  /// zero on some rank. Where blocks have a meaning, adds to `counts` how many are not zero: by
  /// rank, and last of the sums. `sums`, unless null, gets the sums of the whole piece.
  std::uint64_t sum(const ElementRange& piece, std::span<const Elements> of_rank,
                    std::span<std::uint64_t> counts, std::byte* sums = nullptr);
  /// Whether the rank has a -0 in a block of that range that is zero; where blocks have a meaning.
  bool has_negative_zero(LocalRank rank) const {
    return at_.holder_of[rank] && at_.holder_of[rank]->has_negative_zero;
  }

 private:
  /// Of a segment of a piece, which the same ranks hold.
  struct Holder {
    const std::byte* at = nullptr;     ///< its first element
    std::uint64_t nonzero_blocks = 0;  ///< of the piece
    bool has_negative_zero = false;    ///< in a block that is zero
    Rank rank = {};
  };
  struct Segment {
    ElementRange piece;
    std::span<const Elements> of_rank;
    std::span<std::uint64_t> counts;
    std::byte* sums = nullptr;  // of the piece
    ElementRange range;
    std::vector<Holder> holders;     // lowest rank first
    std::vector<Holder*> holder_of;  // by rank; null: it does not hold it
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
  const std::size_t size_;              // of an element
  const std::size_t accumulator_size_;  // of an element's
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
  std::vector<std::uint64_t> cuts_;  // rising: where a rank begins or ends to hold the tensor
  Segment at_;                       // that is summed
  std::unique_ptr<std::byte, FreeAligned> accumulator_;
  std::vector<std::byte> encoded_, decoded_;  // of one block
};

}  // namespace sluice::worker::host
