#include "worker/host/engine/shares.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace sluice::worker::host {
namespace {

/// A piece has at most so many blocks: a word has a bit for each.
constexpr std::uint64_t kMostBlocks = 64;
/// Blocks smaller than this are searched together, where that makes no difference.
constexpr std::size_t kSearchedBytes = 1024;
/// How many elements are added before they are stored, so that they stay in the L1 cache.
constexpr std::uint64_t kAccumulated = 4096;
constexpr std::size_t kAccumulatorBytes = 16;  // of one element, at most

/// Whether the bits of the result depend on how the tensor is divided into blocks. Those of a
/// product do: zeros in a block that a rank has are factors at that rank's place, and other zeros
/// come last.
bool depends_on_blocks(const OpRequest& request) {
  return request.is_encoded() || request.reduction == Reduction::kProduct;
}

std::uint32_t elements_of_block(const OpRequest& request, std::size_t size,
                                const SharesOptions& options) {
  const std::uint64_t elements = std::max(options.block_elements, 1u);
  const std::uint64_t most = options.limits.most_bytes / size;
  assert(elements <= most || !depends_on_blocks(request));
  if (elements > most) return static_cast<std::uint32_t>(most);
  const std::uint64_t searched = kSearchedBytes / size;
  if (depends_on_blocks(request) || elements >= searched)
    return static_cast<std::uint32_t>(elements);
  const std::uint64_t together = std::min((searched + elements - 1) / elements, most / elements);
  return static_cast<std::uint32_t>(elements * together);
}

std::uint64_t elements_of_piece(std::uint64_t bytes, std::uint32_t block_elements, std::size_t size,
                                const SharesOptions& options) {
  const std::uint64_t block = block_elements * size;
  const PieceLimits& limits = options.limits;
  const std::uint64_t each =
      std::max<std::uint64_t>(bytes / options.ranks.size(), limits.least_bytes);
  const std::uint64_t most = std::min<std::uint64_t>(limits.most_bytes / block, kMostBlocks);
  return std::clamp<std::uint64_t>((each + block - 1) / block, 1, most) * block_elements;
}

/// How many elements are added before they are stored, at most. A small tensor takes little memory
/// for it.
std::uint64_t accumulated_elements(std::uint64_t block_elements, std::uint64_t piece_elements) {
  return (std::min(std::max(kAccumulated, block_elements), piece_elements) + 63) / 64 * 64;
}

const numeric::BlockReduction& kernels_of(const OpRequest& request) {
  const WireType wire = request.wire_type();
  return numeric::block_reduction(wire.element(), request.reduction);
}

std::uint64_t length(const ElementRange& range) {
  return range.end - range.begin;
}

ElementRange common(const ElementRange& a, const ElementRange& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Counts the first `first` bits only: the others may be anything that a peer wrote.
std::uint64_t count_of(std::uint64_t blocks, std::uint32_t first) {
  return static_cast<std::uint64_t>(
      std::popcount(first == 64 ? blocks : blocks & ~(kAllBlocks << first)));
}

}  // namespace

std::vector<Part> parts_of(const OpRequest& request, std::span<const std::uint64_t> counts,
                           std::uint16_t ranks) {
  using wire::Collective;
  if (request.collective == Collective::kAllReduce || request.collective == Collective::kBarrier)
    return {};
  std::vector<Part> parts;
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    OpRequest of_rank;
    of_rank.collective = request.collective;
    of_rank.root = request.root;
    lay_out(of_rank, {rank, ranks}, counts);
    parts.push_back({of_rank.held, std::move(of_rank.wanted)});
  }
  return parts;
}

void Shares::FreeAligned::operator()(std::byte* memory) const {
  std::free(memory);
}

Shares::Shares(const OpRequest& request, std::vector<Part> parts, SharesOptions options)
    : type_(request.tensor_type()),
      size_(element_bytes(type_)),
      accumulator_size_(numeric::accumulator_bytes(type_, request.reduction)),
      whole_{0, request.element_count},
      parts_(std::move(parts)),
      options_(std::move(options)),
      wire_type_(request.wire_type()),
      rounding_seed_(request.rounding_seed),
      is_encoded_(request.is_encoded()),
      kernels_(kernels_of(request)),
      block_elements_(elements_of_block(request, size_, options_)),
      summed_(summed()),
      piece_elements_(elements_of_piece(length(summed_) * size_, block_elements_, size_, options_)),
      accumulator_(static_cast<std::byte*>(std::aligned_alloc(
          numeric::kAccumulatorAlignment,
          kAccumulatorBytes * accumulated_elements(block_elements_, piece_elements_)))) {
  assert(parts_.empty() || parts_.size() == options_.ranks.size());
  if (!accumulator_) throw std::bad_alloc();
  for (const Part& part : parts_)
    if (part.held) cuts_.insert(cuts_.end(), {part.held->begin, part.held->end});
  std::sort(cuts_.begin(), cuts_.end());
  at_.holders.reserve(options_.ranks.size());
  if (!is_encoded_) return;
  encoded_.resize(block_elements_ * size_);
  decoded_.resize(block_elements_ * size_);
}

ElementRange Shares::piece(std::uint64_t number) const {
  const std::uint64_t begin = summed_.begin + number * piece_elements_;
  return {begin, std::min(begin + piece_elements_, summed_.end)};
}

/// From the block of the first wanted element to the last wanted element.
ElementRange Shares::summed() const {
  if (parts_.empty()) return whole_;
  ElementRange all{whole_.end, 0};
  for (LocalRank rank = 0; rank < parts_.size(); ++rank)
    for (const ElementRange& range : wanted(rank)) {
      if (length(range) == 0) continue;
      all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
    }
  if (all.end == 0) return {};
  return {all.begin - all.begin % block_elements_, all.end};
}

ElementRange Shares::held(LocalRank rank) const {
  return parts_.empty() ? whole_ : parts_[rank].held.value_or(whole_);
}

std::span<const ElementRange> Shares::wanted(LocalRank rank) const {
  if (parts_.empty() || !parts_[rank].wanted) return {&whole_, 1};
  return *parts_[rank].wanted;
}

std::uint64_t Shares::held_bytes(LocalRank rank) const {
  return length(held(rank)) * size_;
}

std::uint64_t Shares::wanted_bytes(LocalRank rank) const {
  std::uint64_t elements = 0;
  for (const ElementRange& range : wanted(rank)) elements += length(range);
  return elements * size_;
}

std::uint64_t Shares::lacking_bytes(LocalRank rank) const {
  std::uint64_t elements = 0;
  for (const ElementRange& range : wanted(rank))
    elements += length(range) - length(common(range, held(rank)));
  return elements * size_;
}

/// Calls f(range, index of its first element in the output) for each wanted part of `range`.
template <class F>
void Shares::for_each_wanted(LocalRank rank, const ElementRange& range, F&& f) const {
  std::uint64_t before = 0;
  for (const ElementRange& each : wanted(rank)) {
    const ElementRange some = common(range, each);
    if (some.begin != some.end) f(some, before + (some.begin - each.begin));
    before += length(each);
  }
}

std::uint64_t Shares::find_blocks(const ElementRange& piece, const std::byte* input,
                                  bool& has_negative_zero) const {
  std::uint64_t blocks = 0;
  const numeric::BlockedTensor tensor{input + piece.begin * size_, length(piece), block_elements_,
                                      type_};
  has_negative_zero = numeric::mark_nonzero_blocks(tensor, 0, tensor.block_count(), &blocks);
  return blocks;
}

std::uint64_t Shares::blocks_in(std::span<const std::uint64_t> bitmap, std::uint32_t of_elements,
                                const ElementRange& piece) const {
  std::uint64_t blocks = 0;
  for (std::uint64_t begin = piece.begin, bit = 1; begin < piece.end;
       begin += block_elements_, bit <<= 1) {
    const std::uint64_t last = (std::min(begin + block_elements_, piece.end) - 1) / of_elements;
    for (std::uint64_t b = begin / of_elements; b <= last; ++b)
      if ((bitmap[b / 64] >> (b % 64) & 1) != 0) blocks |= bit;
  }
  return blocks;
}

/// Calls f(range, whether they are in `blocks`) for runs of blocks that are alike. The first block
/// begins where the range does.
template <class F>
void Shares::for_each_run(const ElementRange& range, std::uint64_t blocks, F&& f) const {
  const auto is_set = [&](std::uint64_t b) { return (blocks >> b & 1) != 0; };
  const std::uint64_t count = (length(range) + block_elements_ - 1) / block_elements_;
  for (std::uint64_t b = 0, end = 0; b < count; b = end) {
    for (end = b + 1; end < count && is_set(end) == is_set(b);) ++end;
    f(ElementRange{range.begin + b * block_elements_,
                   std::min(range.begin + end * block_elements_, range.end)},
      is_set(b));
  }
}

/// Calls f(extent) for what the rank holds of these blocks of a range.
template <class F>
void Shares::for_each_held_extent(LocalRank rank, const ElementRange& range, std::uint64_t blocks,
                                  F&& f) const {
  const ElementRange mine = held(rank);
  const auto tell = [&](const ElementRange& some) {
    f(Extent{(some.begin - range.begin) * size_, (some.begin - mine.begin) * size_,
             length(some) * size_});
  };
  const ElementRange some = common(range, mine);
  if (some.begin == some.end) return;
  if (blocks == kAllBlocks) return tell(some);
  for_each_run(range, blocks, [&](const ElementRange& run, bool has) {
    if (const ElementRange both = common(run, mine); has && both.begin != both.end) tell(both);
  });
}

/// Calls f(extent, whether it is in these blocks) for what the rank wants of a range.
template <class F>
void Shares::for_each_wanted_extent(LocalRank rank, const ElementRange& range, std::uint64_t blocks,
                                    F&& f) const {
  const auto tell = [&](const ElementRange& of, bool has) {
    for_each_wanted(rank, of, [&](const ElementRange& some, std::uint64_t index) {
      f(Extent{(some.begin - range.begin) * size_, index * size_, length(some) * size_}, has);
    });
  };
  if (blocks == kAllBlocks)
    tell(range, true);
  else
    for_each_run(range, blocks, tell);
}

std::vector<Extent> Shares::held_extents(LocalRank rank, const ElementRange& range,
                                         std::uint64_t blocks) const {
  std::vector<Extent> extents;
  for_each_held_extent(rank, range, blocks, [&](const Extent& e) { extents.push_back(e); });
  return extents;
}

std::vector<Extent> Shares::wanted_extents(LocalRank rank, const ElementRange& range,
                                           std::uint64_t blocks) const {
  std::vector<Extent> extents;
  for_each_wanted_extent(rank, range, blocks, [&](const Extent& e, bool has) {
    if (has) extents.push_back(e);
  });
  return extents;
}

void Shares::copy_in(LocalRank rank, const ElementRange& range, const std::byte* input,
                     std::byte* piece, std::uint64_t blocks) const {
  for_each_held_extent(rank, range, blocks, [&](const Extent& e) {
    std::memcpy(piece + e.in_piece, input + e.in_tensor, e.bytes);
  });
}

void Shares::copy_out(LocalRank rank, const ElementRange& range, const std::byte* piece,
                      std::byte* output, std::uint64_t blocks, bool zeros_are_there) const {
  for_each_wanted_extent(rank, range, blocks, [&](const Extent& e, bool has) {
    if (has)
      std::memcpy(output + e.in_tensor, piece + e.in_piece, e.bytes);
    else if (!zeros_are_there)
      std::memset(output + e.in_tensor, 0, e.bytes);
  });
}

std::uint64_t Shares::sum(const ElementRange& piece, std::span<const Elements> of_rank,
                          std::span<std::uint64_t> counts, std::byte* sums) {
  assert(length(piece) <= piece_elements_);
  at_.piece = piece;
  at_.of_rank = of_rank;
  at_.counts = counts;
  at_.sums = sums;
  std::uint64_t blocks = 0;
  auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), piece.begin);
  for (std::uint64_t begin = piece.begin; begin < piece.end;) {
    while (cut != cuts_.end() && *cut == begin) ++cut;
    const std::uint64_t end = cut == cuts_.end() ? piece.end : std::min(*cut, piece.end);
    begin_segment({begin, end});
    blocks |= sum_segment();
    begin = end;
  }
  return blocks;
}

void Shares::begin_segment(const ElementRange& range) {
  at_.range = range;
  at_.holders.clear();
  at_.holder_of.assign(at_.of_rank.size(), nullptr);
  for (LocalRank r = 0; r < at_.of_rank.size(); ++r) {
    const Elements& elements = at_.of_rank[r];
    const ElementRange mine = held(r);
    if (!elements.input || range.begin < mine.begin || range.begin >= mine.end) continue;
    const std::uint64_t first = elements.is_piece ? at_.piece.begin : mine.begin;
    at_.holder_of[r] =
        &at_.holders.emplace_back(Holder{.at = elements.input + (range.begin - first) * size_,
                                         .nonzero_blocks = elements.blocks.value_or(0),
                                         .rank = options_.ranks[r]});
  }
}

/// Finds which blocks of the segment are not zero. The segment may begin in the middle of a block.
void Shares::search(Holder& holder) const {
  const std::uint64_t before = at_.range.begin - at_.piece.begin;
  const std::uint64_t first = before / block_elements_;
  const std::uint64_t of_first =
      std::min(block_elements_ - before % block_elements_, length(at_.range));
  const auto look = [&](std::uint64_t from, std::uint64_t elements, std::uint64_t block) {
    const numeric::BlockedTensor some{holder.at + from * size_, elements, block_elements_, type_};
    std::uint64_t blocks = 0;
    holder.has_negative_zero |= numeric::mark_nonzero_blocks(some, 0, some.block_count(), &blocks);
    if (blocks != 0) holder.nonzero_blocks |= blocks << block;
  };
  if (of_first == block_elements_) return look(0, length(at_.range), first);
  look(0, of_first, first);
  if (of_first != length(at_.range)) look(of_first, length(at_.range) - of_first, first + 1);
}

/// Sums the segment. Returns the blocks of the piece that are not zero in it on some rank.
std::uint64_t Shares::sum_segment() {
  const std::uint64_t from = at_.range.begin - at_.piece.begin;
  const std::uint64_t to = at_.range.end - at_.piece.begin;
  const auto first = static_cast<std::uint32_t>(from / block_elements_);
  const auto last = static_cast<std::uint32_t>((to - 1) / block_elements_);
  std::uint64_t of_all = 0;
  for (LocalRank r = 0; r < at_.of_rank.size(); ++r) {
    Holder* const holder = at_.holder_of[r];
    if (!holder) continue;
    if (!at_.of_rank[r].blocks) search(*holder);
    of_all |= holder->nonzero_blocks;
    if (has_blocks()) at_.counts[r] += count_of(holder->nonzero_blocks, last + 1);
  }
  if (has_blocks()) at_.counts.back() += count_of(of_all, last + 1);
  const auto alike = [this](std::uint32_t a, std::uint32_t b) {
    return std::all_of(at_.holders.begin(), at_.holders.end(), [&](const Holder& holder) {
      return (holder.nonzero_blocks >> a & 1) == (holder.nonzero_blocks >> b & 1);
    });
  };
  for (std::uint32_t block = first; block <= last;) {
    std::uint32_t end = block + 1;
    while (end <= last && !is_encoded_ && (end + 1 - block) * block_elements_ <= kAccumulated &&
           alike(block, end))
      ++end;
    const auto begin_of = [&](std::uint32_t b) {
      return std::clamp(at_.piece.begin + std::uint64_t{b} * block_elements_, at_.range.begin,
                        at_.range.end);
    };
    sum_blocks(block, {begin_of(block), begin_of(end)});
    block = end;
  }
  return of_all;
}

/// Sums neighbouring blocks, from `first` on, that the same ranks have.
void Shares::sum_blocks(std::uint32_t first, const ElementRange& range) {
  const std::size_t added = add(first, range);
  if (added == 0) return write_zeros(range);
  const std::uint64_t elements = length(range);
  std::byte* const sum = accumulator_.get();
  if (kernels_.combine_zero && added < options_.ranks.size()) kernels_.combine_zero(sum, elements);
  std::int16_t scale = 0;
  if (wire_type_.is_scaled()) {
    kernels_.store(sum, sum, elements, options_.divisor);
    scale = numeric::encode(wire_type_, encoded_.data(), sum, elements,
                            rounding(numeric::Rounder::kAggregator, range));
  } else if (is_encoded_) {
    kernels_.store(encoded_.data(), sum, elements, options_.divisor);
  }
  const auto store = [&](const ElementRange& some, std::byte* out) {
    const std::uint64_t from = some.begin - range.begin;
    if (is_encoded_)
      numeric::decode(wire_type_, out, encoded_.data(), {elements, from, length(some)}, scale);
    else
      kernels_.store(out, sum + from * accumulator_size_, length(some), options_.divisor);
  };
  if (at_.sums) store(range, at_.sums + (range.begin - at_.piece.begin) * size_);
  for_each_output(range,
                  [&](LocalRank, const ElementRange& some, std::byte* out) { store(some, out); });
}

/// Accumulates the elements of all ranks that have block `first`; returns how many ranks that are.
std::size_t Shares::add(std::uint32_t first, const ElementRange& range) {
  const std::uint64_t offset = (range.begin - at_.range.begin) * size_;
  const std::uint64_t elements = length(range);
  std::size_t added = 0;
  for (const Holder& holder : at_.holders) {
    if ((holder.nonzero_blocks >> first & 1) == 0) continue;
    const std::byte* in = holder.at + offset;
    if (is_encoded_) {
      const std::int16_t scale = numeric::encode(wire_type_, encoded_.data(), in, elements,
                                                 rounding(holder.rank.value, range));
      in = encoded_.data();
      if (wire_type_.is_scaled()) {
        numeric::decode(wire_type_, decoded_.data(), in, {elements, 0, elements}, scale);
        in = decoded_.data();
      }
    }
    (added++ == 0 ? kernels_.load : kernels_.combine)(accumulator_.get(), in, elements);
  }
  return added;
}

/// How the block that begins there is rounded.
numeric::Rounding Shares::rounding(std::uint32_t by, const ElementRange& range) const {
  const numeric::Rounder rounder{.seed = rounding_seed_, .op = options_.op, .by = by};
  return rounder.of(range.begin / block_elements_);
}

/// Calls f(rank, range, where it begins) for all parts of a range that the ranks want.
template <class F>
void Shares::for_each_output(const ElementRange& range, F&& f) const {
  for (LocalRank r = 0; r < at_.of_rank.size(); ++r) {
    const Elements& elements = at_.of_rank[r];
    if (!elements.output) continue;
    for_each_wanted(r, range, [&](const ElementRange& some, std::uint64_t index) {
      f(r, some,
        elements.output + (elements.is_piece ? some.begin - at_.piece.begin : index) * size_);
    });
  }
}

/// Writes blocks that no rank has. A rank whose input lies in the place of its output has these
/// zeros there already, and a rank that reads the bitmap of blocks needs none.
void Shares::write_zeros(const ElementRange& range) {
  if (at_.sums)
    std::memset(at_.sums + (range.begin - at_.piece.begin) * size_, 0, length(range) * size_);
  for_each_output(range, [&](LocalRank rank, const ElementRange& some, std::byte* out) {
    const Elements& elements = at_.of_rank[rank];
    const Holder* const holder = at_.holder_of[rank];
    const auto is_in_place = [&] {
      return holder && holder->at + (some.begin - at_.range.begin) * size_ == out;
    };
    const bool is_there = elements.is_piece ? has_blocks()
                                            : !(holder && holder->has_negative_zero) &&
                                                  (elements.zeros_are_there || is_in_place());
    if (!is_there) std::memset(out, 0, length(some) * size_);
  });
}

}  // namespace sluice::worker::host
