#include "worker/engine/keyed_sums.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "common/numeric/encoding.hpp"
#include "worker/engine/copy_pairs.hpp"

namespace sluice::worker {
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
  const std::size_t most = most_bytes(view->coding.keys);
  if (view->first < begin || most > ResultMemory::kBlockBytes) return std::nullopt;
  if (blocks_.empty() || ResultMemory::kBlockBytes - last_used_ < most) {
    blocks_.push_back(ResultMemory::take(memory_));
    last_used_ = 0;
  }
  auto* const keys = reinterpret_cast<std::uint64_t*>(blocks_.back()->bytes + last_used_);
  KeyReader reader(*view);
  const std::size_t count = reader.read_below(bound, 0, keys);
  if (reader.next() != kNoKey || count != view->coding.keys) return std::nullopt;
  auto* const rows = reinterpret_cast<std::byte*>(keys + count);
  if (is_encoded_)
    decode_rows(*view, keys, rows);
  else
    std::memcpy(rows, view->rows.data(), count * row_bytes_);
  add_segments(place, {keys, count}, rows);
  constexpr std::size_t kAlignment = alignof(std::uint64_t);
  const std::size_t used = count * (sizeof(std::uint64_t) + row_bytes_);
  last_used_ += (used + kAlignment - 1) / kAlignment * kAlignment;
  size_ += count;
  return count;
}

/// Replaces rising local keys by the keys, and keeps the pairs.
void KeyedSums::add_segments(std::uint16_t place, std::span<std::uint64_t> keys,
                             const std::byte* rows) {
  for (std::size_t first = 0, end; first < keys.size(); first = end) {
    const std::uint64_t add = geometry_.key_of(place, keys[first]) - keys[first];
    const std::uint64_t last = keys[first] | geometry_.stripe_mask();  // of the stripe
    // One key is in the stripe, or hundreds are.
    std::size_t step = 1;
    while (first + step < keys.size() && keys[first + step] <= last) step *= 2;
    const auto some = keys.first(std::min(first + step, keys.size())).subspan(first + step / 2);
    end = first + step / 2;
    end += static_cast<std::size_t>(std::ranges::upper_bound(some, last) - some.begin());
    for (std::uint64_t& key : keys.subspan(first, end - first)) key += add;
    segments_.push_back({keys.data() + first, rows + first * row_bytes_, end - first});
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
  segments_.clear();
  blocks_.clear();
  size_ = 0;
}

// ----------------------------------------------------------------------------------- in order
/// Calls f(i, segment) for pairs in their order by key; `i` is the place of the first one.
template <class F>
void KeyedSums::for_each_in_order(const F& f) const {
  // The pairs of a stripe come in order, from one stream. So it suffices to know how many pairs are
  // in the stripes before. This is true of longer stripes, too, if they are put in order once more.
  unsigned bits = geometry_.stripe_bits;
  const std::uint64_t last = geometry_.key_bound - 1, few = 4 * std::uint64_t{size_} + 1024;
  while (last >> bits > few) ++bits;
  std::vector<std::size_t> at((last >> bits) + 2);
  for (const Segment& segment : segments_) at[(segment.keys[0] >> bits) + 1] += segment.size;
  for (std::size_t i = 1; i < at.size(); ++i) at[i] += at[i - 1];
  if (bits == geometry_.stripe_bits) {
    for (const Segment& segment : segments_) {
      std::size_t& first = at[segment.keys[0] >> bits];
      f(first, segment);
      first += segment.size;
    }
    return;
  }
  std::vector<Segment> pairs(size_);
  for (const Segment& segment : segments_)
    for (std::size_t i = 0; i < segment.size; ++i)
      pairs[at[segment.keys[i] >> bits]++] = {segment.keys + i, segment.rows + i * row_bytes_, 1};
  auto first = pairs.begin();
  for (std::size_t group = 0; group + 1 < at.size(); ++group) {  // at[group] is its end now
    const auto end = pairs.begin() + static_cast<std::ptrdiff_t>(at[group]);
    std::sort(first, end, [](const Segment& a, const Segment& b) { return *a.keys < *b.keys; });
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
      copy_keys(keys.data() + first, segment.keys, segment.size);
      copy_rows(rows.data() + first * row_bytes_, segment.rows, segment.size, row_bytes_);
      return;
    }
    for (std::size_t i = 0; i < segment.size; ++i) {
      const std::uint64_t key = segment.keys[i];
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
  for (const Segment& segment : segments_)
    for (std::size_t i = 0; i < segment.size; ++i)
      copy_row(tensor.data() + segment.keys[i] * row, segment.rows + i * row, row);
}

}  // namespace sluice::worker
