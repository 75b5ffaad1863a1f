#include "aggregator/engine/keyed_combiner.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "common/numeric/magnitude.hpp"
#include "common/protocol/build.hpp"

namespace sluice::aggregator {
namespace {

std::byte* aligned_bytes(std::size_t size) {
  return static_cast<std::byte*>(
      ::operator new (size, std::align_val_t{numeric::kAccumulatorAlignment}));
}

}  // namespace

bool KeyedCursor::seek(std::uint64_t lowest) {
  for (;;) {
    const auto read = rest.next(chunk);
    if (read == ChunkReader::Read::kMalformed) return false;
    if (read == ChunkReader::Read::kEnd) chunk.number = kNoChunk;
    if (chunk.number >= lowest) return true;
  }
}

KeyedScratch::KeyedScratch()
    : sums_(aligned_bytes(2 * kRowsBytes)),
      rows_(std::make_unique<std::byte[]>(kRowsBytes)),
      widened_(std::make_unique<std::byte[]>(2 * kRowsBytes)),
      run_(std::make_unique<std::byte[]>(limits::kMaxPayload)) {
  std::memset(sums_.get(), 0, 2 * kRowsBytes);
}

bool KeyedCombiner::begin(const Packet& packet, StreamId stream, const Session& session,
                          bool resumed) {
  const auto& shape = packet.shape();
  const auto& descriptor = *packet.descriptor();
  const auto& data = packet.as<wire::KeyValueData>();
  const auto geometry = KeyedGeometry::make(shape.element_count, shape.block_elements,
                                            WireType(shape.wire_type), session, data.data.op);
  if (!geometry || geometry->chunk_bits != shape.columns || !geometry->uses(stream)) return false;
  if (!resumed && data.horizon != 0) return false;
  shape_ = shape;
  geometry_ = *geometry;
  format_ = geometry->format();
  stream_ = stream;
  rounder_ = {.seed = descriptor.rounding_seed, .op = data.data.op};
  const ElementType element = geometry->type.element();
  const auto reduction = static_cast<Reduction>(descriptor.reduction);
  reduction_ = &numeric::block_reduction(element, reduction);
  begins_with_zero_ = numeric::begins_with_zero(element, reduction);
  sum_bytes_ = geometry->row_elements * numeric::accumulator_bytes(element, reduction);
  threshold_ = threshold_of(descriptor);
  horizon_ = data.horizon;
  return true;
}

bool KeyedCombiner::contradicts(const Packet& packet) const {
  return wire::same(packet.shape(), shape_) && packet.as<wire::KeyValueData>().horizon != horizon_;
}

bool KeyedCombiner::fits(const Packet& packet) const {
  const auto& data = packet.as<wire::KeyValueData>();
  if (!wire::same(packet.shape(), shape_) || data.horizon != horizon_) return false;
  if (data.following != kNoChunk && !is_of_stream(data.following)) return false;
  ChunkReader reader(packet.run(), format_);
  PackedChunk chunk;  // its keys were checked with the packet
  std::uint64_t last = 0;
  bool all = true;
  while (all && reader.next(chunk) == ChunkReader::Read::kChunk) {
    last = chunk.number;
    all = is_of_stream(last);
  }
  return all && (packet.run().empty() || last < data.following);
}

void KeyedCombiner::take(Rank w, const Packet& packet, Buffer buffer) {
  Run& run = runs_[w.value];
  run.following = packet.as<wire::KeyValueData>().following;
  run.left.rest = ChunkReader(packet.run(), format_);
  run.buffer = std::move(buffer);
  // A run may begin with delivered chunks: an aggregator that takes over gets them again.
  const bool is_read = run.left.seek(horizon_);
  assert(is_read);  // the run was checked with the packet
}

struct KeyedCombiner::Summed {
  ChunkKeys keys;
  std::array<std::uint8_t, 256> offsets;
  std::size_t count;  // of offsets; at least 1
};

/// Adds the rows of one chunk, lowest rank first.
void KeyedCombiner::sum_chunk(std::uint64_t number, KeyedScratch& scratch, Summed& sum) const {
  sum.keys = {};
  KeyedChunk chunk;
  for (std::uint16_t r = 0; r < runs_.size(); ++r) {
    const PackedChunk& packed = scratch.cursors_[r].chunk;
    if (packed.number != number) continue;
    chunk.number = number;
    chunk.count = packed.count;
    chunk.rows = ChunkReader::unpack(packed, geometry_.chunk_bits, chunk.offsets.data());
    assert(chunk.rows != nullptr);  // its keys were checked with the packet
    if (format_.is_scaled()) {
      const std::size_t elements = chunk.count * std::size_t{geometry_.row_elements};
      numeric::decode(geometry_.type, scratch.widened_.get(), chunk.rows, {elements, 0, elements},
                      packed.scale);
      chunk.rows = scratch.widened_.get();
    }
    add(chunk, sum.keys, scratch.sums_.get());
    for (std::size_t i = 0; i < chunk.count; ++i) sum.keys.insert(chunk.offsets[i]);
  }
  sum.count = sum.keys.write(sum.offsets);
}

/// Adds one rank's rows. `has` are the keys that already have a sum.
void KeyedCombiner::add(const KeyedChunk& chunk, const ChunkKeys& has, std::byte* sums) const {
  const std::size_t row = geometry_.row_elements;
  if (begins_with_zero_ && row == 1) {
    reduction_->combine_at(sums, chunk.rows, chunk.offsets.data(), chunk.count);
    return;
  }
  // Neighbouring keys are added in one call if all of them have a sum, or if none has.
  for (std::size_t first = 0, end; first < chunk.count; first = end) {
    const std::uint8_t offset = chunk.offsets[first];
    const bool adds = begins_with_zero_ || has.contains(offset);
    for (end = first + 1; end < chunk.count && chunk.offsets[end] == offset + (end - first) &&
                          (begins_with_zero_ || has.contains(chunk.offsets[end]) == adds);)
      ++end;
    (adds ? reduction_->combine : reduction_->load)(sums + offset * sum_bytes_,
                                                    chunk.rows + first * geometry_.row_bytes(),
                                                    (end - first) * row);
  }
}

/// Writes the sums in the form in which they travel or will be scaled. Sets them to zero for the
/// next chunk.
void KeyedCombiner::store(std::byte* rows, std::byte* sums,
                          std::span<const std::uint8_t> offsets) const {
  const auto ranks = static_cast<std::uint32_t>(runs_.size());
  const std::size_t row = geometry_.row_elements;
  if (begins_with_zero_ && row == 1 && sum_bytes_ == sizeof(std::uint32_t)) {
    constexpr std::uint32_t kZero = 0;
    reduction_->store_from(rows, sums, offsets.data(), offsets.size(), ranks);
    for (const std::uint8_t offset : offsets)  // a fixed size avoids a call of memset for each
      std::memcpy(sums + offset * sizeof kZero, &kZero, sizeof kZero);
    return;
  }
  for (std::size_t first = 0, end; first < offsets.size(); first = end) {
    for (end = first + 1; end < offsets.size() && offsets[end] == offsets[first] + (end - first);)
      ++end;
    std::byte* const from = sums + offsets[first] * sum_bytes_;
    reduction_->store(rows + first * geometry_.row_bytes(), from, (end - first) * row, ranks);
    std::memset(from, 0, (end - first) * sum_bytes_);
  }
}

/// Keeps the rows that reach the threshold, and counts the others. Returns how many it has kept.
std::size_t KeyedCombiner::drop_rejected(std::span<std::uint8_t> offsets, KeyedScratch& scratch,
                                         Merged& merged) const {
  const std::size_t row_bytes = geometry_.row_bytes();
  std::byte* const rows = scratch.rows_.get();
  const std::byte* values = rows;
  std::size_t values_bytes = row_bytes;
  const ElementType element = geometry_.type.element();
  if (is_float(element) && element_bytes(element) == 2) {
    values = scratch.widened_.get();
    values_bytes = 2 * row_bytes;
    numeric::block_reduction(element, Reduction::kSum)
        .load(scratch.widened_.get(), rows, offsets.size() * geometry_.row_elements);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const double size =
        numeric::largest_magnitude(element, values + i * values_bytes, geometry_.row_elements);
    if (size < threshold_) {
      ++merged.rejected[rejected_class(size, threshold_)];
      continue;
    }
    if (kept != i) std::memcpy(rows + kept * row_bytes, rows + i * row_bytes, row_bytes);
    offsets[kept++] = offsets[i];
  }
  return kept;
}

/// Appends the sums of a chunk; if there is a threshold, only those that reach it. Returns false if
/// they do not fit: the next round sums this chunk again.
bool KeyedCombiner::write(const Summed& sum, ChunkWriter& writer, KeyedScratch& scratch,
                          Merged& merged) const {
  const std::span offsets(sum.offsets.data(), sum.count);
  if (threshold_ == 0 && !format_.is_scaled()) {
    std::byte* const rows = writer.append(merged.next, offsets, sum.keys);
    if (rows != nullptr)
      store(rows, scratch.sums_.get(), offsets);
    else
      clear(scratch.sums_.get());
    return rows != nullptr;
  }
  store(scratch.rows_.get(), scratch.sums_.get(), offsets);
  std::array<std::uint8_t, 256> kept = sum.offsets;
  const auto rejected = merged.rejected;
  const std::size_t count = threshold_ == 0
                                ? sum.count
                                : drop_rejected(std::span(kept).first(sum.count), scratch, merged);
  if (count == 0) return true;
  std::byte* const rows = writer.append(merged.next, std::span(kept).first(count));
  if (rows == nullptr) {
    merged.rejected = rejected;
    return false;
  }
  if (format_.is_scaled())
    writer.set_scale(numeric::encode(geometry_.type, rows, scratch.rows_.get(),
                                     count * geometry_.row_elements, rounder_.of(merged.next)));
  else
    std::memcpy(rows, scratch.rows_.get(), count * geometry_.row_bytes());
  return true;
}

KeyedCombiner::Merged KeyedCombiner::merge(std::span<std::byte> out, KeyedScratch& scratch) const {
  std::uint64_t end = kNoChunk;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    scratch.cursors_[r] = runs_[r].left;
    end = std::min(end, runs_[r].following);
  }
  Merged merged;
  ChunkWriter writer(out, format_);
  Summed sum;
  for (std::size_t chunks = 0;; ++chunks) {
    merged.next = end;
    for (std::size_t r = 0; r < runs_.size(); ++r)
      merged.next = std::min(merged.next, scratch.cursors_[r].chunk.number);
    if (merged.next == end || chunks == limits::kRoundCursors / runs_.size()) break;
    sum_chunk(merged.next, scratch, sum);
    if (!write(sum, writer, scratch, merged)) break;
    for (std::size_t r = 0; r < runs_.size(); ++r)
      if (KeyedCursor& cursor = scratch.cursors_[r]; cursor.chunk.number == merged.next)
        cursor.seek(merged.next + 1);
  }
  merged.run = writer.run();
  return merged;
}

RankSet KeyedCombiner::start_round(const Merged& merged, const KeyedScratch& scratch) {
  RankSet used_up;
  horizon_ = merged.next;
  for (std::uint16_t r = 0; r < runs_.size(); ++r) {
    Run& run = runs_[r];
    run.left = scratch.cursors_[r];
    if (run.following != horizon_) continue;
    used_up.insert(Rank{r});
    run = {};
  }
  return used_up;
}

}  // namespace sluice::aggregator
