#include "worker/engine/keyed_operation.hpp"

#include <cassert>
#include <cstring>
#include <string>
#include <utility>

namespace sluice::worker {
namespace {

/// If keys are few, most chunks have few short rows: then a call of memcpy costs more than copying
/// the bytes here.
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

KeyedOperation::KeyedOperation(const KeyedRequest& request, ElementType type,
                               const KeyedGeometry& geometry, std::shared_ptr<ResultMemory> memory)
    : request_(request),
      geometry_(geometry),
      row_bytes_(geometry.row_elements * element_bytes(type)),
      is_encoded_(geometry.type != type),
      stream_begin_(geometry.used_streams() + std::size_t{1}) {
  *request_.sums = KeyedSums(geometry, type, std::move(memory));
  // Finds where chunks begin, without a branch per key. If keys are few, most chunks have a few
  // keys only, and the processor would mispredict most branches.
  const auto keys = request.keys;
  const auto begins = std::make_unique_for_overwrite<std::size_t[]>(keys.size() + 1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    begins[count] = i;
    count += i == 0 || geometry_.chunk_of(keys[i]) != geometry_.chunk_of(keys[i - 1]) ? 1 : 0;
  }
  begins[count] = keys.size();

  // Counts each stream's chunks, then puts them where they belong.
  const auto places = std::make_unique_for_overwrite<std::uint16_t[]>(count);
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = geometry_.place_of(geometry_.chunk_of(keys[begins[i]]));
    ++stream_begin_[places[i]];
  }
  std::size_t sum = 0;
  for (std::size_t& begin : stream_begin_) sum += std::exchange(begin, sum);
  chunks_ = std::make_unique_for_overwrite<Chunk[]>(count);
  std::vector<std::size_t> at(stream_begin_.begin(), stream_begin_.end() - 1);
  for (std::size_t i = 0; i < count; ++i)
    chunks_[at[places[i]]++] = Chunk(begins[i], begins[i + 1] - begins[i]);
}

std::span<const KeyedOperation::Chunk> KeyedOperation::chunks_of(StreamId s) const {
  const std::size_t place = geometry_.place_of(s);
  assert(place + 1 < stream_begin_.size());
  return {chunks_.get() + stream_begin_[place], chunks_.get() + stream_begin_[place + 1]};
}

// ------------------------------------------------------------------------------------ what is sent
KeyedOperation::Run KeyedOperation::run_from(StreamId s, std::size_t begin,
                                             std::size_t room) const {
  const auto chunks = chunks_of(s);
  const ChunkFormat format = geometry_.format();
  Run run{.begin = begin, .end = begin};
  for (std::uint64_t lowest = 0; run.end < chunks.size(); ++run.end) {
    const Chunk& chunk = chunks[run.end];
    const std::uint64_t number = number_of(chunk);
    const std::size_t bytes = format.bytes(number - lowest, chunk.count());
    if (room - run.bytes < bytes) {
      run.following = number;
      break;
    }
    run.bytes += bytes;
    lowest = number + 1;
  }
  return run;
}

void KeyedOperation::write(StreamId s, const Run& run, const numeric::Rounder& rounder,
                           std::span<std::byte> out) const {
  const auto chunks = chunks_of(s).subspan(run.begin, run.end - run.begin);
  const ChunkFormat format = geometry_.format();
  ChunkWriter writer(out.first(run.bytes), format);
  for (const Chunk& chunk : chunks) {
    const std::uint64_t* const keys = request_.keys.data() + chunk.first();
    const std::size_t count = chunk.count();
    const std::uint64_t mask = geometry_.chunk_keys() - 1;
    std::byte* rows = writer.open(number_of(chunk), count);
    assert(rows != nullptr);
    if (writer.has_bitmap(count)) {
      ChunkKeys set;
      for (std::size_t i = 0; i < count; ++i) set.insert(static_cast<std::uint8_t>(keys[i] & mask));
      set.write_bitmap(rows, keyed::bitmap_bytes(geometry_.chunk_bits));
    } else if (count != geometry_.chunk_keys()) {
      for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<std::byte>(keys[i] & mask);
    }
    rows += format.keys_bytes(count);
    const std::byte* const from = request_.rows + chunk.first() * row_bytes_;
    if (!is_encoded_) {
      copy_rows(rows, from, count, row_bytes_);
      continue;
    }
    const auto rounding = rounder.of(number_of(chunk));
    const std::int16_t scale =
        numeric::encode(geometry_.type, rows, from, count * geometry_.row_elements, rounding);
    if (format.is_scaled()) writer.set_scale(scale);
  }
  assert(writer.size() == run.bytes);
}

// --------------------------------------------------------------------------------- what comes back
std::optional<std::size_t> KeyedOperation::store(StreamId s, std::span<const std::byte> run,
                                                 std::uint64_t begin, std::uint64_t end) {
  const auto keys = request_.sums->add(s, run, begin, end);
  keys_received_ += keys.value_or(0);
  if (is_too_much()) request_.sums->clear();  // they are only counted from now on
  return keys;
}

bool KeyedOperation::is_too_much() const {
  return keys_received_ > request_.result_bytes / (sizeof(std::uint64_t) + row_bytes_);
}

void KeyedOperation::add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) request_.sums->rejected[i] += counts[i];
}

std::optional<Error> KeyedOperation::finish() const {
  if (!is_too_much()) return {};
  return too_many_sums(keys_received_, request_, row_bytes_);
}

Error too_many_sums(std::uint64_t keys, const KeyedRequest& request, std::size_t row_bytes) {
  return Error(ErrorCode::kInvalidArgument, "the sums have " + std::to_string(keys) + " keys, of " +
                                                std::to_string(sizeof(std::uint64_t) + row_bytes) +
                                                " bytes each with their rows: more than the " +
                                                std::to_string(request.result_bytes) +
                                                " bytes allowed");
}

}  // namespace sluice::worker
