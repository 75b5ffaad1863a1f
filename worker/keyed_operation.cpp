#include "worker/keyed_operation.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

namespace sluice::worker {
namespace {

/// Chunks of few short rows are most, where keys are few: a call of memcpy for each costs more than
/// its bytes.
void copy_rows(std::byte* out, const std::byte* in, std::size_t count, std::size_t row_bytes) {
  constexpr std::size_t kShortRow = sizeof(float);
  constexpr std::size_t kFewRows = 16;
  if (row_bytes == kShortRow && count <= kFewRows)
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(out + i * kShortRow, in + i * kShortRow, kShortRow);
  else
    std::memcpy(out, in, count * row_bytes);
}

}  // namespace

ResultMemory::Block ResultMemory::take() {
  if (spare_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  Block block = std::move(spare_.back());
  spare_.pop_back();
  return block;
}

void ResultMemory::give_back(std::vector<Block> blocks) {
  for (Block& block : blocks)
    if (spare_.size() < limits::kSpareResultBlocks) spare_.push_back(std::move(block));
}

KeyedOperation::KeyedOperation(const KeyedRequest& request, const KeyedGeometry& geometry,
                               ResultMemory& memory)
    : request_(request),
      geometry_(geometry),
      memory_(memory),
      stream_begin_(geometry.used_streams() + std::size_t{1}),
      sums_(geometry.used_streams()) {
  // Counts each stream's chunks, then puts them where they belong.
  const auto keys = request.keys;
  std::vector<Chunk> found;
  std::vector<std::uint16_t> turns;
  for (std::size_t first = 0, end; first < keys.size(); first = end) {
    const std::uint64_t number = geometry_.chunk_of(keys[first]);
    for (end = first + 1; end < keys.size() && geometry_.chunk_of(keys[end]) == number;) ++end;
    found.emplace_back(first, end - first);
    turns.push_back(geometry_.turn_of(number));
    ++stream_begin_[turns.back()];
  }
  std::size_t sum = 0;
  for (std::size_t& begin : stream_begin_) sum += std::exchange(begin, sum);
  chunks_.resize(found.size());
  std::vector<std::size_t> at(stream_begin_.begin(), stream_begin_.end() - 1);
  for (std::size_t i = 0; i < found.size(); ++i) chunks_[at[turns[i]]++] = found[i];
}

std::span<const KeyedOperation::Chunk> KeyedOperation::chunks_of(StreamId s) const {
  const std::size_t turn = turn_of(s);
  assert(turn + 1 < stream_begin_.size());
  return std::span(chunks_).subspan(stream_begin_[turn],
                                    stream_begin_[turn + 1] - stream_begin_[turn]);
}

// ------------------------------------------------------------------------------------- what is
// sent
KeyedOperation::Run KeyedOperation::run_from(StreamId s, std::size_t begin,
                                             std::size_t room) const {
  const auto chunks = chunks_of(s);
  Run run{.begin = begin, .end = begin};
  for (std::uint64_t lowest = 0; run.end < chunks.size(); ++run.end) {
    const Chunk& chunk = chunks[run.end];
    const std::uint64_t number = number_of(chunk);
    const std::size_t bytes = ChunkWriter::bytes_of(number - lowest, chunk.count(),
                                                    geometry_.chunk_bits, geometry_.row_bytes());
    if (room - run.bytes < bytes) {
      run.following = number;
      break;
    }
    run.bytes += bytes;
    lowest = number + 1;
  }
  return run;
}

void KeyedOperation::write(StreamId s, const Run& run, std::span<std::byte> out) const {
  const auto chunks = chunks_of(s).subspan(run.begin, run.end - run.begin);
  ChunkWriter writer(out.first(run.bytes), geometry_.chunk_bits, geometry_.row_bytes());
  std::array<std::uint8_t, 256> offsets;
  for (const Chunk& chunk : chunks) {
    const auto keys = request_.keys.subspan(chunk.first(), chunk.count());
    for (std::size_t i = 0; i < keys.size(); ++i)
      offsets[i] = static_cast<std::uint8_t>(keys[i] & (geometry_.chunk_keys() - 1));
    std::byte* const rows = writer.append(number_of(chunk), std::span(offsets).first(keys.size()));
    assert(rows != nullptr);
    copy_rows(rows, request_.rows + chunk.first() * geometry_.row_bytes(), keys.size(),
              geometry_.row_bytes());
  }
  assert(writer.size() == run.bytes);
}

// --------------------------------------------------------------------------------- what comes back
std::optional<std::size_t> KeyedOperation::store(StreamId s, std::span<const std::byte> run,
                                                 std::uint64_t begin, std::uint64_t end) {
  if (run.empty()) return 0;
  // A copy is read: another process may write what lies in shared memory.
  assert(run.size() <= ResultMemory::kBlockBytes);
  if (received_.empty() || ResultMemory::kBlockBytes - last_used_ < run.size()) {
    received_.push_back(memory_.take());
    last_used_ = 0;
  }
  std::byte* const copy = received_.back().get() + last_used_;
  std::memcpy(copy, run.data(), run.size());
  ChunkReader reader({copy, run.size()}, geometry_.chunk_bits, geometry_.row_bytes());
  std::vector<PackedChunk>& sums = sums_[turn_of(s)];
  const std::size_t before = sums.size();
  std::size_t keys = 0;
  for (PackedChunk chunk;;) {
    const auto read = reader.next(chunk);
    if (read == ChunkReader::Read::kEnd) break;
    if (read == ChunkReader::Read::kMalformed || chunk.number < begin || chunk.number >= end ||
        geometry_.stream_of(chunk.number) != s) {
      sums.resize(before);
      return std::nullopt;
    }
    keys += chunk.count;
    sums.push_back(chunk);
  }
  keys_received_ += keys;
  if (is_too_much()) {  // they are only counted from now on
    for (auto& each : sums_) each.clear();
    memory_.give_back(std::exchange(received_, {}));
  } else {
    last_used_ += run.size();
  }
  return keys;
}

bool KeyedOperation::is_too_much() const {
  return keys_received_ > request_.result_bytes / (sizeof(std::uint64_t) + geometry_.row_bytes());
}

void KeyedOperation::add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) rejected_[i] += counts[i];
}

std::optional<Error> KeyedOperation::finish() {
  auto error = write_sums();
  memory_.give_back(std::exchange(received_, {}));
  return error;
}

/// To where the caller wants them.
std::optional<Error> KeyedOperation::write_sums() {
  const std::size_t row_bytes = geometry_.row_bytes();
  KeyedSums& sums = *request_.sums;
  sums.rejected = rejected_;
  if (is_too_much())
    return Error(ErrorCode::kInvalidArgument,
                 "the sums have " + std::to_string(keys_received_) + " keys, of " +
                     std::to_string(sizeof(std::uint64_t) + row_bytes) +
                     " bytes each with their rows: more than the " +
                     std::to_string(request_.result_bytes) + " bytes allowed");
  sums.keys.resize(keys_received_);
  sums.rows.resize(keys_received_ * row_bytes);
  std::uint64_t* keys = sums.keys.data();
  std::byte* rows = sums.rows.data();

  // The streams' chunks are merged: of each stream the next one.
  std::vector<std::size_t> at(sums_.size());
  std::vector<std::uint64_t> next(sums_.size());
  const auto number_at = [&](std::size_t turn) {
    return at[turn] < sums_[turn].size() ? sums_[turn][at[turn]].number : kNoChunk;
  };
  for (std::size_t turn = 0; turn < next.size(); ++turn) next[turn] = number_at(turn);
  KeyedChunk chunk;
  for (;;) {
    const auto least = std::ranges::min_element(next);
    if (*least == kNoChunk) return std::nullopt;
    const auto turn = static_cast<std::size_t>(least - next.begin());
    const PackedChunk& packed = sums_[turn][at[turn]++];
    *least = number_at(turn);
    chunk.number = packed.number;
    chunk.count = packed.count;
    chunk.rows = ChunkReader::unpack(packed, geometry_.chunk_bits, chunk.offsets.data());
    if (chunk.rows == nullptr ||
        !has_keys_below(chunk, geometry_.chunk_bits, geometry_.key_bound)) {
      sums = {};
      return Error(ErrorCode::kProtocol, "an aggregator's sums have keys that cannot be");
    }
    const std::uint64_t first = chunk.number << geometry_.chunk_bits;
    for (std::size_t i = 0; i < chunk.count; ++i) keys[i] = first + chunk.offsets[i];
    copy_rows(rows, chunk.rows, chunk.count, row_bytes);
    keys += chunk.count;
    rows += chunk.count * row_bytes;
  }
}

}  // namespace sluice::worker
