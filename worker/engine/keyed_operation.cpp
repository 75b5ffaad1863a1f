#include "worker/engine/keyed_operation.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "worker/engine/copy_pairs.hpp"

namespace sluice::worker {
namespace {

constexpr std::size_t kAhead = 4;  // segments

}  // namespace

KeyedOperation::KeyedOperation(const KeyedRequest& request, ElementType type,
                               const KeyedGeometry& geometry, std::shared_ptr<ResultMemory> memory)
    : request_(request),
      geometry_(geometry),
      row_bytes_(geometry.row_elements * element_bytes(type)),
      is_encoded_(geometry.type != type),
      format_(geometry.format()),
      stream_begin_(geometry.used_streams() + std::size_t{1}) {
  *request_.sums = KeyedSums(geometry, type, std::move(memory));
  // Finds where segments begin, without a branch per key. If keys are few, most segments have a few
  // keys only, and the processor would mispredict most branches.
  const auto keys = request.keys;
  const auto begins_segment = [&](std::size_t i) -> std::size_t {
    return geometry_.stripe_of(keys[i]) != geometry_.stripe_of(keys[i - 1]) ? 1 : 0;
  };
  std::size_t count = keys.empty() ? 0 : 1;
  for (std::size_t i = 1; i < keys.size(); ++i) count += begins_segment(i);
  const auto begins = std::make_unique_for_overwrite<std::size_t[]>(count + 1);
  begins[0] = 0;
  std::size_t found = 1;
  for (std::size_t i = 1; i < keys.size() && found < count; ++i) {
    begins[found] = i;
    found += begins_segment(i);
  }
  begins[count] = keys.size();

  // Counts each stream's segments, then puts them where they belong.
  const auto places = std::make_unique_for_overwrite<std::uint16_t[]>(count);
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = geometry_.deal(geometry_.stripe_of(keys[begins[i]])).place;
    ++stream_begin_[places[i]];
  }
  std::size_t sum = 0;
  for (std::size_t& begin : stream_begin_) sum += std::exchange(begin, sum);
  segments_ = std::make_unique_for_overwrite<Segment[]>(count);
  std::vector<std::size_t> at(stream_begin_.begin(), stream_begin_.end() - 1);
  for (std::size_t i = 0; i < count; ++i)
    segments_[at[places[i]]++] = Segment(begins[i], begins[i + 1] - begins[i]);
}

std::span<const KeyedOperation::Segment> KeyedOperation::segments_of(StreamId s) const {
  const std::size_t place = geometry_.place_of(s);
  assert(place + 1 < stream_begin_.size());
  return {segments_.get() + stream_begin_[place], segments_.get() + stream_begin_[place + 1]};
}

// ------------------------------------------------------------------------------------ what is sent
/// Calls f(first, count) for each part of a segment among so many pairs: its place among the
/// caller's.
template <class F>
void KeyedOperation::for_each_part(std::span<const Segment> segments, const At& begin,
                                   std::size_t count, const F& f) const {
  for (At at = begin; count > 0; at = {at.segment + 1, 0}) {
    const Segment& segment = segments[at.segment];
    const std::size_t part = std::min(segment.count() - at.key, count);
    f(segment.first() + at.key, part);
    count -= part;
  }
}

/// Loads the begin of a segment into the cache: the segments of a stream lie far apart.
void KeyedOperation::prefetch(const Segment& segment) const {
  __builtin_prefetch(request_.keys.data() + segment.first());
  __builtin_prefetch(request_.rows + segment.first() * row_bytes_);
}

/// Sets local_keys_ to those of so many pairs, or of all that are left. Returns where they end.
KeyedOperation::At KeyedOperation::gather(std::span<const Segment> segments, At at,
                                          std::size_t most) {
  if (local_keys_.size() < most) local_keys_.resize(most);
  std::uint64_t* out = local_keys_.data();
  std::uint64_t* const full = out + most;
  while (at.segment < segments.size() && out != full) {
    const Segment& segment = segments[at.segment];
    if (at.segment + kAhead < segments.size()) prefetch(segments[at.segment + kAhead]);
    const std::uint64_t* const keys = request_.keys.data() + segment.first();
    const std::size_t left = static_cast<std::size_t>(full - out);
    const std::size_t end = std::min<std::size_t>(segment.count(), at.key + left);
    const std::uint64_t before = keys[0] - geometry_.local_of(keys[0]);
    for (std::size_t i = at.key; i < end; ++i) *out++ = keys[i] - before;
    at = end == segment.count() ? At{at.segment + 1, 0} : At{at.segment, end};
  }
  gathered_ = static_cast<std::size_t>(out - local_keys_.data());
  return at;
}

KeyedOperation::Run KeyedOperation::run_from(StreamId s, const At& begin, std::size_t room) {
  const auto segments = segments_of(s);
  const At behind = gather(segments, begin, format_.most_keys(room));
  Run run{.begin = begin, .end = behind};
  const std::span keys(local_keys_.data(), gathered_);
  run.plan = plan_run(keys, room, format_, behind.segment < segments.size());
  // Without keys, the place is that of another stream's.
  gathered_from_ = keys.empty() ? nullptr : segments.data() + begin.segment;
  gathered_at_ = begin.key;
  std::size_t count = run.plan.coding.keys;
  if (count != gathered_) {
    run.end = begin;
    for (count += begin.key; run.end.segment < segments.size(); ++run.end.segment) {
      if (count < segments[run.end.segment].count()) break;
      count -= segments[run.end.segment].count();
    }
    run.end.key = count;
  }
  if (run.end.segment < segments.size()) {
    const std::uint64_t next = request_.keys[segments[run.end.segment].first() + run.end.key];
    run.following = geometry_.local_of(next);
    if (format_.is_scaled()) run.following &= ~(geometry_.chunk_keys() - 1);
  }
  return run;
}

KeyedOperation::Found KeyedOperation::find(StreamId s, const At& begin, std::uint64_t key) const {
  const auto segments = segments_of(s);
  const auto local_at = [&](const Segment& segment, std::size_t i) {
    return geometry_.local_of(request_.keys[segment.first() + i]);
  };
  Found found{.at = begin, .passed = 0};
  for (At& at = found.at; at.segment < segments.size(); at = {at.segment + 1, 0}) {
    const Segment& segment = segments[at.segment];
    std::size_t end = segment.count();
    if (local_at(segment, end - 1) < key) {
      found.passed += end - at.key;
      continue;
    }
    const std::size_t first = at.key;
    for (--end; at.key < end;) {  // the pair at the end is not before it
      const std::size_t middle = (at.key + end) / 2;
      if (local_at(segment, middle) < key)
        at.key = middle + 1;
      else
        end = middle;
    }
    found.passed += at.key - first;
    break;
  }
  return found;
}

void KeyedOperation::write(StreamId s, const Run& run, const numeric::Rounder& rounder,
                           std::span<std::byte> out) {
  const std::size_t count = run.plan.coding.keys;
  if (count == 0) return;
  const auto segments = segments_of(s);
  if (gathered_from_ != segments.data() + run.begin.segment || gathered_at_ != run.begin.key)
    gather(segments, run.begin, count);
  gathered_from_ = nullptr;
  std::byte* rows = write_keys(run.plan.coding, local_keys_, out);
  for_each_part(segments, run.begin, count, [&](std::uint64_t first, std::size_t part) {
    if (is_encoded_) {
      rows = encode(rows, first, part, rounder);
      return;
    }
    copy_rows(rows, request_.rows + first * row_bytes_, part, row_bytes_);
    rows += part * row_bytes_;
  });
  assert(rows == out.data() + run.plan.bytes);
}

/// Writes the rows of neighbours in one stripe. Scaled rows: each chunk's behind its scale.
std::byte* KeyedOperation::encode(std::byte* out, std::uint64_t first, std::size_t count,
                                  const numeric::Rounder& rounder) const {
  const std::uint64_t* const keys = request_.keys.data() + first;
  const std::byte* in = request_.rows + first * row_bytes_;
  for (std::size_t begin = 0, end; begin < count; begin = end) {
    const std::uint64_t chunk = geometry_.chunk_of(keys[begin]);
    for (end = begin + 1; end < count && geometry_.chunk_of(keys[end]) == chunk;) ++end;
    std::byte* const rows = out + (format_.is_scaled() ? sizeof(std::int16_t) : 0);
    const wire::Le<std::int16_t> scale = numeric::encode(
        geometry_.type, rows, in, (end - begin) * geometry_.row_elements, rounder.of(chunk));
    if (format_.is_scaled()) std::memcpy(out, &scale, sizeof scale);
    out = rows + format_.rows_bytes(end - begin);
    in += (end - begin) * row_bytes_;
  }
  return out;
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
