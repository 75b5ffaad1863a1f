#include "worker/host/shares.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace sluice::worker::host {
namespace {

/// Of blocks in which elements that are not zero are searched; a piece has 64 at most.
constexpr std::size_t kBlockBytes = 1024;
/// So many elements are added before they are stored: they stay in the first cache.
constexpr std::uint64_t kAccumulated = 4096;
constexpr std::size_t kAccumulatorBytes = 16;  // of an element, at most

std::uint64_t elements_of_piece(std::uint64_t bytes, std::size_t size, LocalRank local_ranks,
                                const PieceLimits& limits) {
  const std::uint64_t each = (bytes + local_ranks - 1) / local_ranks;
  return std::bit_floor(std::clamp<std::uint64_t>(each, limits.least_bytes, limits.most_bytes)) /
         size;
}

std::uint64_t length(const ElementRange& range) {
  return range.end - range.begin;
}

ElementRange common(const ElementRange& a, const ElementRange& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

void Shares::FreeAligned::operator()(std::byte* memory) const {
  std::free(memory);
}

Shares::Shares(const OpRequest& request, std::vector<Part> parts, LocalRank local_ranks,
               std::uint16_t ranks, const PieceLimits& limits)
    : type_(request.tensor_type()),
      size_(element_bytes(type_)),
      accumulator_size_(numeric::accumulator_bytes(type_, request.reduction)),
      whole_{0, request.element_count},
      parts_(std::move(parts)),
      ranks_(ranks),
      kernels_(numeric::block_reduction(type_, request.reduction)),
      piece_elements_(elements_of_piece(whole_.end * size_, size_, local_ranks, limits)),
      block_elements_(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(kBlockBytes / size_, piece_elements_))),
      accumulator_(static_cast<std::byte*>(
          std::aligned_alloc(numeric::kAccumulatorAlignment, kAccumulated * kAccumulatorBytes))) {
  assert(limits.most_bytes <= 64 * kBlockBytes);
  assert(parts_.empty() || parts_.size() == local_ranks);
  if (!accumulator_) throw std::bad_alloc();
  for (const Part& part : parts_)
    if (part.held) cuts_.insert(cuts_.end(), {part.held->begin, part.held->end});
  std::sort(cuts_.begin(), cuts_.end());
  at_.holders.reserve(local_ranks);
}

ElementRange Shares::piece(std::uint64_t number) const {
  const std::uint64_t begin = number * piece_elements_;
  return {begin, std::min(begin + piece_elements_, whole_.end)};
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

/// Calls f(range, index of its first element in the output) for what is wanted of `range`.
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

/// Calls f(range, whether they are of `blocks`) for neighbours that are alike, of a range whose
/// first block begins with it.
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

void Shares::copy_in(LocalRank rank, const ElementRange& range, const std::byte* input,
                     std::byte* piece, std::uint64_t blocks) const {
  const ElementRange mine = held(rank);
  const auto copy = [&](const ElementRange& some) {
    std::memcpy(piece + (some.begin - range.begin) * size_,
                input + (some.begin - mine.begin) * size_, length(some) * size_);
  };
  const ElementRange some = common(range, mine);
  if (some.begin == some.end) return;
  if (blocks == kAllBlocks) return copy(some);
  for_each_run(range, blocks, [&](const ElementRange& run, bool has) {
    if (has) copy(run);
  });
}

void Shares::copy_out(LocalRank rank, const ElementRange& range, const std::byte* piece,
                      std::byte* output, std::uint64_t blocks, bool zeros_are_there) const {
  const auto copy = [&](const ElementRange& of, bool has) {
    for_each_wanted(rank, of, [&](const ElementRange& some, std::uint64_t index) {
      std::byte* const out = output + index * size_;
      if (has)
        std::memcpy(out, piece + (some.begin - range.begin) * size_, length(some) * size_);
      else if (!zeros_are_there)
        std::memset(out, 0, length(some) * size_);
    });
  };
  if (blocks == kAllBlocks)
    copy(range, true);
  else
    for_each_run(range, blocks, copy);
}

std::uint64_t Shares::sum(const ElementRange& piece, std::span<const Elements> of_rank) {
  at_.piece = piece;
  at_.of_rank = of_rank;
  std::uint64_t blocks = 0;
  auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), piece.begin);
  for (std::uint64_t begin = piece.begin; begin < piece.end;) {
    while (cut != cuts_.end() && *cut == begin) ++cut;
    const std::uint64_t end = cut == cuts_.end() ? piece.end : std::min(*cut, piece.end);
    begin_segment({begin, end});
    blocks = sum_segment();
    begin = end;
  }
  return has_blocks() ? blocks : kAllBlocks;
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
                                         .nonzero_blocks = elements.blocks.value_or(0)});
  }
}

std::uint64_t Shares::sum_segment() {
  const std::uint64_t elements = length(at_.range);
  const auto blocks = static_cast<std::uint32_t>((elements - 1) / block_elements_ + 1);
  std::uint64_t of_all = 0;
  for (LocalRank r = 0; r < at_.of_rank.size(); ++r) {
    Holder* const holder = at_.holder_of[r];
    if (!holder) continue;
    if (!at_.of_rank[r].blocks)
      holder->has_negative_zero = numeric::mark_nonzero_blocks(
          {holder->at, elements, block_elements_, type_}, 0, blocks, &holder->nonzero_blocks);
    of_all |= holder->nonzero_blocks;
  }
  const auto alike = [this](std::uint32_t a, std::uint32_t b) {
    return std::all_of(at_.holders.begin(), at_.holders.end(), [&](const Holder& holder) {
      return (holder.nonzero_blocks >> a & 1) == (holder.nonzero_blocks >> b & 1);
    });
  };
  for (std::uint32_t block = 0; block < blocks;) {
    std::uint32_t end = block + 1;
    while (end < blocks && (end + 1 - block) * block_elements_ <= kAccumulated && alike(block, end))
      ++end;
    const std::uint64_t begin = at_.range.begin + std::uint64_t{block} * block_elements_;
    sum_blocks(block, {begin, std::min(begin + (end - block) * block_elements_, at_.range.end)});
    block = end;
  }
  return of_all;
}

/// Of blocks from that one on which the same ranks have.
void Shares::sum_blocks(std::uint32_t first, const ElementRange& range) {
  const std::uint64_t offset = (range.begin - at_.range.begin) * size_;
  const std::uint64_t elements = length(range);
  std::size_t added = 0;
  for (const Holder& holder : at_.holders) {
    if ((holder.nonzero_blocks >> first & 1) == 0) continue;
    const auto add = added++ == 0 ? kernels_.load : kernels_.combine;
    add(accumulator_.get(), holder.at + offset, elements);
  }
  if (added == 0) return write_zeros(range);
  if (kernels_.combine_zero && added < ranks_) kernels_.combine_zero(accumulator_.get(), elements);
  for_each_output(range, [&](LocalRank, const ElementRange& some, std::byte* out) {
    kernels_.store(out, accumulator_.get() + (some.begin - range.begin) * accumulator_size_,
                   length(some), ranks_);
  });
}

/// Calls f(rank, range, where it begins) for all that the ranks want of a range.
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

/// Nobody has these blocks. Who holds such zeros in the place of his output has them there, and
/// who takes what the blocks tell needs none.
void Shares::write_zeros(const ElementRange& range) {
  for_each_output(range, [&](LocalRank rank, const ElementRange& some, std::byte* out) {
    if (at_.of_rank[rank].is_piece && has_blocks()) return;
    const Holder* const holder = at_.holder_of[rank];
    const bool is_there = holder && !holder->has_negative_zero &&
                          holder->at + (some.begin - at_.range.begin) * size_ == out;
    if (!is_there) std::memset(out, 0, length(some) * size_);
  });
}

}  // namespace sluice::worker::host
