#include "worker/keyed_operation.hpp"

#include <cassert>
#include <cstring>
#include <queue>
#include <string>
#include <utility>

namespace sluice::worker {

KeyedOperation::KeyedOperation(const KeyedRequest& request, const KeyedGeometry& geometry)
    : request_(request),
      geometry_(geometry),
      stream_begin_(geometry.used_streams() + std::size_t{1}),
      runs_(geometry.used_streams()),
      run_sizes_(geometry.used_streams()) {
  // Counts each stream's chunks, then puts them where they belong.
  const auto keys = request.keys;
  const auto for_each_chunk = [&](auto&& f) {
    for (std::size_t first = 0, end; first < keys.size(); first = end) {
      const std::uint64_t number = geometry_.chunk_of(keys[first]);
      for (end = first + 1; end < keys.size() && geometry_.chunk_of(keys[end]) == number;) ++end;
      f(turn_of(geometry_.stream_of(number)), first, end - first);
    }
  };
  std::size_t chunks = 0;
  for_each_chunk([&](std::size_t turn, std::size_t, std::size_t) {
    ++stream_begin_[turn];
    ++chunks;
  });
  std::size_t sum = 0;
  for (std::size_t& begin : stream_begin_) sum += std::exchange(begin, sum);
  chunks_.resize(chunks);
  std::vector<std::size_t> at(stream_begin_.begin(), stream_begin_.end() - 1);
  for_each_chunk([&](std::size_t turn, std::size_t first, std::size_t count) {
    chunks_[at[turn]++] = Chunk(first, count);
  });
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
    std::memcpy(rows, request_.rows + chunk.first() * geometry_.row_bytes(),
                keys.size() * geometry_.row_bytes());
  }
  assert(writer.size() == run.bytes);
}

// --------------------------------------------------------------------------------- what comes back
bool KeyedOperation::fits(StreamId s, std::span<const std::byte> run, std::uint64_t begin,
                          std::uint64_t end) const {
  ChunkReader reader(run, geometry_.chunk_bits, geometry_.row_bytes());
  KeyedChunk chunk;
  for (;;) {
    const auto read = reader.next(chunk);
    if (read != ChunkReader::Read::kChunk) return read == ChunkReader::Read::kEnd;
    if (chunk.number < begin || chunk.number >= end ||
        !has_keys_below(chunk, geometry_.chunk_bits, geometry_.key_bound) ||
        geometry_.stream_of(chunk.number) != s)
      return false;
  }
}

std::size_t KeyedOperation::store(StreamId s, std::span<const std::byte> run) {
  if (run.empty()) return 0;  // there may be many such, and they take no memory
  // The keys are counted in a copy: another process may write what lies in shared memory.
  auto& runs = runs_[turn_of(s)];
  const std::size_t before = runs.size();
  runs.insert(runs.end(), run.begin(), run.end());
  const std::span<const std::byte> all = runs;
  ChunkReader reader(all.subspan(before), geometry_.chunk_bits, geometry_.row_bytes());
  KeyedChunk chunk;
  std::size_t keys = 0;
  while (reader.next(chunk) == ChunkReader::Read::kChunk) keys += chunk.count;
  keys_received_ += keys;
  run_sizes_[turn_of(s)].push_back(run.size());
  if (keys_received_ > request_.result_bytes / (sizeof(std::uint64_t) + geometry_.row_bytes())) {
    runs.clear();  // too many: they are only counted from now on
    run_sizes_[turn_of(s)].clear();
  }
  return keys;
}

void KeyedOperation::add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) rejected_[i] += counts[i];
}

std::optional<Error> KeyedOperation::finish() {
  const std::size_t row_bytes = geometry_.row_bytes();
  const std::size_t pair_bytes = sizeof(std::uint64_t) + row_bytes;
  KeyedSums& sums = *request_.sums;
  sums = {};
  sums.rejected = rejected_;
  if (keys_received_ > request_.result_bytes / pair_bytes)
    return Error(ErrorCode::kInvalidArgument,
                 "the sums have " + std::to_string(keys_received_) + " keys, of " +
                     std::to_string(pair_bytes) + " bytes each with their rows: more than the " +
                     std::to_string(request_.result_bytes) + " bytes allowed");
  sums.keys.reserve(keys_received_);
  sums.rows.resize(keys_received_ * row_bytes);

  // The streams' chunks, which rise in each of them, are merged.
  struct Source {
    ChunkReader reader;
    std::span<const std::byte> rest;
    std::span<const std::size_t> sizes;
    KeyedChunk chunk;

    bool advance(const KeyedGeometry& g) {
      while (reader.next(chunk) != ChunkReader::Read::kChunk) {
        if (sizes.empty()) return false;
        reader = ChunkReader(rest.first(sizes.front()), g.chunk_bits, g.row_bytes());
        rest = rest.subspan(sizes.front());
        sizes = sizes.subspan(1);
      }
      return true;
    }
  };
  std::vector<Source> sources(runs_.size());
  const auto is_later = [&](std::size_t a, std::size_t b) {
    return sources[a].chunk.number > sources[b].chunk.number;
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(is_later)> queue(is_later);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i].rest = runs_[i];
    sources[i].sizes = run_sizes_[i];
    if (sources[i].advance(geometry_)) queue.push(i);
  }
  std::byte* rows = sums.rows.data();
  while (!queue.empty()) {
    Source& source = sources[queue.top()];
    const KeyedChunk& chunk = source.chunk;
    for (std::size_t i = 0; i < chunk.count; ++i)
      sums.keys.push_back((chunk.number << geometry_.chunk_bits) + chunk.offsets[i]);
    std::memcpy(rows, chunk.rows, chunk.count * row_bytes);
    rows += chunk.count * row_bytes;
    const std::size_t i = queue.top();
    queue.pop();
    if (source.advance(geometry_)) queue.push(i);
  }
  return std::nullopt;
}

}  // namespace sluice::worker
