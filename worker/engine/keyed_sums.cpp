#include "worker/engine/keyed_sums.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "common/numeric/encoding.hpp"
#include "worker/engine/copy_pairs.hpp"

namespace sluice::worker {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = alignof(std::uint64_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// ------------------------------------------------------------------------------------------ memory
ResultMemory::~ResultMemory() {
  for (Block* list : {spare_, returned_.load()})
    while (list != nullptr) delete std::exchange(list, list->next);
}

ResultMemory::Taken ResultMemory::take(const std::shared_ptr<ResultMemory>& memory) {
  Block*& spare = memory->spare_;
  if (spare == nullptr) spare = memory->returned_.exchange(nullptr, std::memory_order_acquire);
  if (spare == nullptr) return Taken(new Block, {memory});
  memory->kept_.fetch_sub(1, std::memory_order_relaxed);
  return Taken(std::exchange(spare, spare->next), {memory});
}

void ResultMemory::give_back(Block* block) {
  if (kept_.fetch_add(1, std::memory_order_relaxed) >= limits::kSpareResultBlocks) {
    kept_.fetch_sub(1, std::memory_order_relaxed);
    delete block;
    return;
  }
  block->next = returned_.load(std::memory_order_relaxed);
  while (!returned_.compare_exchange_weak(block->next, block, std::memory_order_release,
                                          std::memory_order_relaxed))
    ;
}

// ---------------------------------------------------------------------------------- what came
std::optional<std::size_t> KeyedSums::add(StreamId s, std::span<const std::byte> run,
                                          std::uint64_t begin, std::uint64_t end) {
  const auto view = RunView::parse(run);
  if (!view) return std::nullopt;
  if (view->coding.keys == 0) return 0;
  if (!view->has_rows(geometry_.format())) return std::nullopt;
  const std::uint16_t place = geometry_.place_of(s);
  const std::uint64_t bound = std::min(end, geometry_.local_bound(place));
  if (view->first < begin) return std::nullopt;
  if (local_keys_.size() <= view->coding.keys) local_keys_.resize(view->coding.keys + 1);
  KeyReader reader(*view);
  const std::size_t count = reader.read_below(bound, 0, local_keys_.data());
  if (reader.next() != kNoKey || count != view->coding.keys) return std::nullopt;

  const std::size_t keys_bytes = aligned(count * sizeof(InStripe));
  const std::size_t bytes = keys_bytes + aligned(count * row_bytes_);
  if (bytes > ResultMemory::kBlockBytes) return std::nullopt;
  std::byte* const memory = take_memory(bytes);
  auto* const keys = reinterpret_cast<InStripe*>(memory);
  std::byte* const rows = memory + keys_bytes;
  for (std::size_t i = 0; i < count; ++i)
    keys[i] = static_cast<InStripe>(local_keys_[i] & geometry_.stripe_mask());
  if (is_encoded_)
    decode_rows(*view, local_keys_.data(), rows);
  else
    std::memcpy(rows, view->rows.data(), count * row_bytes_);
  add_segments(place, std::span(local_keys_).first(count), keys, rows);
  size_ += count;
  return count;
}

std::byte* KeyedSums::take_memory(std::size_t bytes) {
  if (blocks_.empty() || ResultMemory::kBlockBytes - last_used_ < bytes) {
    blocks_.push_back(ResultMemory::take(memory_));
    last_used_ = 0;
  }
  return blocks_.back()->bytes + std::exchange(last_used_, last_used_ + bytes);
}

/// Finds where segments begin without a branch per key: how many keys one has is hard to foresee.
void KeyedSums::add_segments(std::uint16_t place, std::span<const std::uint64_t> local_keys,
                             const InStripe* keys, const std::byte* rows) {
  if (begins_.size() <= local_keys.size()) begins_.resize(local_keys.size() + 1);
  begins_[0] = 0;
  std::size_t found = 1;
  for (std::size_t i = 1; i < local_keys.size(); ++i) {
    begins_[found] = static_cast<std::uint32_t>(i);
    found += (local_keys[i] ^ local_keys[i - 1]) >> geometry_.stripe_bits != 0 ? 1 : 0;
  }
  begins_[found] = static_cast<std::uint32_t>(local_keys.size());
  for (std::size_t i = 0; i < found; ++i) {
    const std::size_t first = begins_[i];
    const std::uint64_t stripe = local_keys[first] & ~geometry_.stripe_mask();
    const std::size_t at = segments_++ % kSegmentsOfBlock;
    if (at == 0) segment_blocks_.push_back(ResultMemory::take(memory_));
    new (segment_blocks_.back()->bytes + at * sizeof(Segment))
        Segment{geometry_.key_of(place, stripe), keys + first, rows + first * row_bytes_,
                begins_[i + 1] - first};
  }
}

void KeyedSums::decode_rows(const RunView& run, const std::uint64_t* keys, std::byte* out) const {
  const RunFormat format = geometry_.format();
  const std::byte* in = run.rows.data();
  for (std::size_t first = 0, end; first < run.coding.keys; first = end) {
    end = run.coding.keys;
    std::int16_t scale = 0;
    if (format.is_scaled()) {
      const std::uint64_t chunk = format.chunk_of(keys[first]);
      for (end = first + 1; end < run.coding.keys && format.chunk_of(keys[end]) == chunk;) ++end;
      scale = take_scale(in);
    }
    const std::size_t elements = (end - first) * geometry_.row_elements;
    numeric::decode(geometry_.type, out, in, {elements, 0, elements}, scale);
    in += format.rows_bytes(end - first);
    out += (end - first) * row_bytes_;
  }
}

void KeyedSums::clear() {
  segment_blocks_.clear();
  segments_ = 0;
  blocks_.clear();
  size_ = 0;
}

// ----------------------------------------------------------------------------------- in order
/// As they came.
template <class F>
void KeyedSums::for_each_segment(const F& f) const {
  std::size_t left = segments_;
  for (const ResultMemory::Taken& block : segment_blocks_) {
    const auto* const all = reinterpret_cast<const Segment*>(block->bytes);
    const std::size_t count = std::min(left, kSegmentsOfBlock);
    for (std::size_t i = 0; i < count; ++i) f(all[i]);
    left -= count;
  }
}

/// Calls f(i, segment) for pairs in their order by key; `i` is the place of the first one.
template <class F>
void KeyedSums::for_each_in_order(const F& f) const {
  // The pairs of a stripe come in order, from one stream. So it suffices to know how many pairs are
  // in the stripes before. This is true of longer stripes, too, if they are put in order once more.
  unsigned bits = geometry_.stripe_bits;
  const std::uint64_t last = geometry_.key_bound - 1, few = 4 * std::uint64_t{size_} + 1024;
  while (last >> bits > few) ++bits;
  std::vector<std::size_t> at((last >> bits) + 2);
  for_each_segment(
      [&](const Segment& segment) { at[(segment.stripe >> bits) + 1] += segment.size; });
  for (std::size_t i = 1; i < at.size(); ++i) at[i] += at[i - 1];
  if (bits == geometry_.stripe_bits) {
    for_each_segment([&](const Segment& segment) {
      std::size_t& first = at[segment.stripe >> bits];
      f(first, segment);
      first += segment.size;
    });
    return;
  }
  std::vector<Segment> pairs(size_);
  for_each_segment([&](const Segment& segment) {
    for (std::size_t i = 0; i < segment.size; ++i)
      pairs[at[segment.stripe >> bits]++] = {segment.stripe, segment.keys + i,
                                             segment.rows + i * row_bytes_, 1};
  });
  auto first = pairs.begin();
  for (std::size_t group = 0; group + 1 < at.size(); ++group) {  // at[group] is its end now
    const auto end = pairs.begin() + static_cast<std::ptrdiff_t>(at[group]);
    std::sort(first, end, [](const Segment& a, const Segment& b) { return a.key(0) < b.key(0); });
    first = end;
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) f(i, pairs[i]);
}

void KeyedSums::merge(std::span<std::uint64_t> keys, std::span<std::byte> rows,
                      std::uint64_t parts) const {
  // The aggregator decides whether keys have all their parts; here only what fits is written.
  assert(keys.size() == size_ / parts && rows.size() == keys.size() * parts * row_bytes());
  if (in_order_.keys) {
    const auto* const all = reinterpret_cast<const std::uint64_t*>(in_order_.keys.get());
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = all[i * parts] / parts;
    if (!rows.empty()) std::memcpy(rows.data(), in_order_.rows.get(), rows.size());
    return;
  }
  for_each_in_order([&](std::size_t first, const Segment& segment) {
    if (parts == 1) {
      for (std::size_t i = 0; i < segment.size; ++i) keys[first + i] = segment.key(i);
      copy_rows(rows.data() + first * row_bytes_, segment.rows, segment.size, row_bytes_);
      return;
    }
    for (std::size_t i = 0; i < segment.size; ++i) {
      const std::uint64_t key = segment.key(i);
      const std::size_t place = first + i;
      if (place >= keys.size() * parts) return;
      if (key % parts == 0) keys[place / parts] = key / parts;
      std::memcpy(rows.data() + place * row_bytes_, segment.rows + i * row_bytes_, row_bytes_);
    }
  });
}

void KeyedSums::scatter(std::span<std::byte> tensor) const {
  const std::size_t row = row_bytes();
  assert(tensor.size() == geometry_.key_bound * row);
  if (in_order_.keys) {
    const auto* const keys = reinterpret_cast<const std::uint64_t*>(in_order_.keys.get());
    for (std::size_t i = 0; i < size_; ++i)
      std::memcpy(tensor.data() + keys[i] * row, in_order_.rows.get() + i * row, row);
    return;
  }
  for_each_segment([&](const Segment& segment) {
    for (std::size_t i = 0; i < segment.size; ++i)
      copy_row(tensor.data() + segment.key(i) * row, segment.rows + i * row, row);
  });
}

}  // namespace sluice::worker
