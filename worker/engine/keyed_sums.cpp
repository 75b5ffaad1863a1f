#include "worker/engine/keyed_sums.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "common/numeric/encoding.hpp"

namespace sluice::worker {
namespace {

/// Short copies all have this length, if there is room: memcpy of an unknown length costs more than
/// the bytes. So many bytes behind each run may be read.
constexpr std::size_t kShortCopy = 64;

constexpr std::size_t kUsableBytes = ResultMemory::kBlockBytes - kShortCopy;
static_assert(kUsableBytes >= limits::kMaxPayload);

void copy(std::byte* out, const std::byte* in, std::size_t size, std::size_t room) {
  if (size <= kShortCopy && room >= kShortCopy)
    std::memcpy(out, in, kShortCopy);
  else
    std::memcpy(out, in, size);
}

/// keys[i] = first + offsets[i] for all i < count; more may be written, `room` at most. `offsets`
/// has 256.
void write_keys(std::uint64_t* keys, std::uint64_t first, const std::uint8_t* offsets,
                std::size_t count, std::size_t room) {
  constexpr std::size_t kStep = 8;
  std::size_t i = 0;
  for (; i < count && i + kStep <= room; i += kStep)
    for (std::size_t j = 0; j < kStep; ++j) keys[i + j] = first + offsets[i + j];
  for (; i < count; ++i) keys[i] = first + offsets[i];
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

// ------------------------------------------------------------------------------------ what came
std::optional<std::size_t> KeyedSums::add(StreamId s, std::span<const std::byte> run,
                                          std::uint64_t begin, std::uint64_t end) {
  if (run.empty()) return 0;
  assert(run.size() <= kUsableBytes);
  if (blocks_.empty() || kUsableBytes - last_used_ < run.size()) {
    blocks_.push_back(ResultMemory::take(memory_));
    last_used_ = 0;
  }
  std::byte* const copy = blocks_.back()->bytes + last_used_;
  std::memcpy(copy, run.data(), run.size());
  const std::span<const std::byte> kept(copy, run.size());
  ChunkReader reader(kept, geometry_.format());
  std::size_t keys = 0;
  for (PackedChunk chunk;;) {
    const auto read = reader.next(chunk);
    if (read == ChunkReader::Read::kEnd) break;
    if (read == ChunkReader::Read::kMalformed || chunk.number < begin || chunk.number >= end ||
        geometry_.stream_of(chunk.number) != s || !geometry_.has_keys_of(chunk))
      return std::nullopt;
    keys += chunk.count;
  }
  last_used_ += run.size();
  runs_[geometry_.place_of(s)].push_back(kept);
  size_ += keys;
  return keys;
}

void KeyedSums::clear() {
  for (auto& each : runs_) each.clear();
  blocks_.clear();
  size_ = 0;
}

// ----------------------------------------------------------------------------------- in order
/// Reads the runs of one stream, which were checked as they came.
class KeyedSums::Cursor {
 public:
  Cursor(std::span<const std::span<const std::byte>> runs, const ChunkFormat& format)
      : runs_(runs), format_(format) {
    advance();
  }

  const PackedChunk& chunk() const { return chunk_; }  ///< number kNoChunk: none is left

  void advance() {
    while (reader_.next(chunk_) != ChunkReader::Read::kChunk) {
      if (runs_.empty()) {
        chunk_.number = kNoChunk;
        return;
      }
      reader_ = ChunkReader(runs_.front(), format_);
      runs_ = runs_.subspan(1);
    }
  }

 private:
  std::span<const std::span<const std::byte>> runs_;  // not read yet
  ChunkFormat format_;
  ChunkReader reader_;
  PackedChunk chunk_{};
};

/// Reads as many rows of a chunk as there is room for.
void KeyedSums::read(const PackedChunk& chunk, const std::byte* values,
                     std::span<std::byte> rows) const {
  const std::size_t elements = chunk.count * std::size_t{geometry_.row_elements};
  const std::size_t bytes = std::min(chunk.count * row_bytes_, rows.size());
  if (is_encoded_)
    numeric::decode(geometry_.type, rows.data(), values, {elements, 0, bytes / sizeof(float)},
                    chunk.scale);
  else
    copy(rows.data(), values, bytes, rows.size());
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
  std::vector<Cursor> cursors;
  std::vector<std::uint64_t> next;  // of each stream
  for (const auto& runs : runs_) {
    cursors.emplace_back(runs, geometry_.format());
    next.push_back(cursors.back().chunk().number);
  }
  std::array<std::uint8_t, 256> offsets;
  if (next.empty()) return;
  for (std::uint64_t number = 0;; ++number) {
    // If many chunks have keys, one of the next few mostly has: to search all streams for the least
    // number costs more.
    constexpr int kTries = 8;
    std::size_t place = geometry_.place_of(number);
    for (int i = 0; i < kTries && next[place] != number; ++i) place = geometry_.place_of(++number);
    if (next[place] != number) {
      number = *std::ranges::min_element(next);
      place = geometry_.place_of(number);
    }
    if (number == kNoChunk) return;
    const PackedChunk chunk = cursors[place].chunk();
    cursors[place].advance();
    next[place] = cursors[place].chunk().number;
    const std::byte* const values =
        ChunkReader::unpack(chunk, geometry_.chunk_bits, offsets.data());
    const std::uint64_t first = number << geometry_.chunk_bits;
    if (parts == 1) {
      write_keys(keys.data(), first, offsets.data(), chunk.count, keys.size());
      keys = keys.subspan(chunk.count);
    } else {
      for (std::size_t i = 0; i < chunk.count; ++i) {
        if ((first + offsets[i]) % parts != 0 || keys.empty()) continue;
        keys.front() = (first + offsets[i]) / parts;
        keys = keys.subspan(1);
      }
    }
    read(chunk, values, rows);
    rows = rows.subspan(std::min(chunk.count * row_bytes_, rows.size()));
  }
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
  std::array<std::uint8_t, 256> offsets;
  std::vector<std::byte> decoded(is_encoded_ ? geometry_.chunk_keys() * row : 0);
  for (const auto& runs : runs_)
    for (Cursor cursor(runs, geometry_.format()); cursor.chunk().number != kNoChunk;
         cursor.advance()) {
      const PackedChunk& chunk = cursor.chunk();
      const std::byte* values = ChunkReader::unpack(chunk, geometry_.chunk_bits, offsets.data());
      if (is_encoded_) {
        read(chunk, values, decoded);
        values = decoded.data();
      }
      std::byte* const out = tensor.data() + (chunk.number << geometry_.chunk_bits) * row;
      if (row == sizeof(float))
        for (std::size_t i = 0; i < chunk.count; ++i)
          std::memcpy(out + offsets[i] * sizeof(float), values + i * sizeof(float), sizeof(float));
      else
        for (std::size_t i = 0; i < chunk.count; ++i)
          std::memcpy(out + offsets[i] * row, values + i * row, row);
    }
}

}  // namespace sluice::worker
