#include "aggregator/engine/keyed_combiner.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/numeric/magnitude.hpp"
#include "common/protocol/build.hpp"

namespace sluice::aggregator {
namespace {

/// A chunk, at least.
constexpr std::uint64_t kLeastWindow = 256;
static_assert(kLeastWindow >> kMostChunkBits != 0);

/// Keys are passed over in steps, in which 32 bits suffice to tell them apart.
constexpr std::uint64_t kFarthest = std::uint64_t{1} << 31;

std::byte* aligned_bytes(std::size_t size) {
  return static_cast<std::byte*>(
      ::operator new (size, std::align_val_t{numeric::kAccumulatorAlignment}));
}

}  // namespace

KeyedScratch::KeyedScratch()
    : keys_(std::make_unique<std::uint64_t[]>(kMostKeys)),
      sums_(aligned_bytes(kRowsBytes)),
      has_sum_(kMostKeys),
      rows_(std::make_unique<std::byte[]>(kRowsBytes)),
      widened_(std::make_unique<std::byte[]>(2 * kRowsBytes)),
      run_(std::make_unique<std::byte[]>(limits::kMaxPayload)) {
  std::memset(sums_.get(), 0, kRowsBytes);
  rejected_.reserve(limits::kMostRejected);
}

void KeyedScratch::reserve(const Session& session) {
  const std::size_t most = 2 * std::size_t{session.payload_bytes};  // of a run; 4 bits are least
  grown(offsets_, session.ranks * most);
  grown(places_, most);
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
  if (chunk_begin(data.horizon) != data.horizon) return false;
  const std::uint64_t bound = geometry_.local_bound(geometry_.place_of(stream_));
  const bool goes_on = data.following != kNoKey;
  if (goes_on && (data.following >= bound || chunk_begin(data.following) != data.following))
    return false;
  const auto run = RunView::parse(packet.run());
  if (!run) return false;
  if (run->coding.keys == 0) return true;
  if (!run->has_rows(format_)) return false;
  const auto last = KeyReader(*run).last();
  return last && *last < (goes_on ? std::uint64_t{data.following} : bound);
}

void KeyedCombiner::take(Rank w, const Packet& packet, Buffer buffer, KeyedScratch& scratch) {
  Run& run = runs_[w.value];
  run.following = packet.as<wire::KeyValueData>().following;
  const RunView view = RunView::parse(packet.run()).value_or(RunView{});
  run.left = {.keys = KeyReader(view), .rows = view.rows};
  run.buffer = std::move(buffer);
  // A run may begin with delivered keys: an aggregator that takes over gets them again.
  skip(run.left, horizon_, scratch);
}

// ---------------------------------------------------------------------------------------- reading
/// Passes over the keys below `to`, and their rows.
void KeyedCombiner::skip(KeyedCursor& cursor, std::uint64_t to, KeyedScratch& scratch) const {
  if (cursor.keys.next() >= to) return;
  std::uint32_t* const offsets = KeyedScratch::grown(scratch.places_, cursor.keys.left());
  while (cursor.keys.next() < to) {
    const std::uint64_t base = chunk_begin(cursor.keys.next());
    const std::uint64_t size = std::min<std::uint64_t>(to - base, kFarthest);
    const std::size_t count = cursor.keys.read_below(base + size, base, offsets);
    take_rows(cursor, {offsets, count}, nullptr);
  }
}

/// Takes the rows of the next keys from a run. Returns where they are; scaled rows are decoded to
/// `widened`, unless that is null. Keys are counted from the begin of a chunk.
const std::byte* KeyedCombiner::take_rows(KeyedCursor& cursor,
                                          std::span<const std::uint32_t> offsets,
                                          std::byte* widened) const {
  const std::byte* const rows = cursor.rows.data();
  if (!format_.is_scaled()) {
    cursor.rows = cursor.rows.subspan(format_.rows_bytes(offsets.size()));
    return rows;
  }
  std::byte* out = widened;
  for (std::size_t first = 0, end; first < offsets.size(); first = end) {
    const std::uint64_t chunk = format_.chunk_of(offsets[first]);
    for (end = first + 1; end < offsets.size() && format_.chunk_of(offsets[end]) == chunk;) ++end;
    const std::byte* in = cursor.rows.data();
    const std::int16_t scale = take_scale(in);
    const std::size_t elements = (end - first) * geometry_.row_elements;
    if (out != nullptr) {
      numeric::decode(geometry_.type, out, in, {elements, 0, elements}, scale);
      out += elements * sizeof(float);
    }
    cursor.rows = cursor.rows.subspan(sizeof scale + format_.rows_bytes(end - first));
  }
  return widened;
}

/// The keys of the running round that are looked at together.
struct KeyedCombiner::Window {
  std::uint64_t base = 0;
  std::uint32_t end = 0;  // counted from the base, as all keys
};

/// Reads all ranks' keys of the window.
void KeyedCombiner::read_window(const Window& window, KeyedScratch& scratch) const {
  std::size_t all = 0;
  for (std::size_t r = 0; r < ranks(); ++r) {
    KeyedCursor& cursor = scratch.cursors_[r];
    scratch.in_window_[r] = 0;
    if (cursor.keys.next() >= window.base + window.end) continue;
    scratch.before_[r] = cursor;
    std::uint32_t* const offsets =
        KeyedScratch::grown(scratch.offsets_, all + cursor.keys.left()) + all;
    const std::size_t count =
        cursor.keys.read_below(window.base + window.end, window.base, offsets);
    scratch.window_.insert({offsets, count});
    scratch.in_window_[r] = static_cast<std::uint32_t>(count);
    all += count;
  }
}

// ----------------------------------------------------------------------------------------- adding
/// Adds the window's rows below its end, lowest rank first.
void KeyedCombiner::add_window(const Window& window, KeyedScratch& scratch) const {
  std::uint32_t* offsets = scratch.offsets_.data();
  for (std::size_t r = 0; r < ranks(); ++r) {
    const std::span all(offsets, scratch.in_window_[r]);
    if (all.empty()) continue;
    offsets += all.size();
    std::size_t count = all.size();
    while (count > 0 && all[count - 1] >= window.end) --count;
    const auto keys = all.first(count);
    KeyedCursor& cursor = scratch.cursors_[r];
    std::uint32_t* const places =
        KeyedScratch::grown(scratch.places_, scratch.before_[r].keys.left());
    if (count != all.size()) cursor.keys.put_back(all.subspan(count), window.base);
    const std::byte* const rows = take_rows(cursor, keys, scratch.widened_.get());
    for (std::size_t i = 0; i < count; ++i) places[i] = scratch.window_.place_of(keys[i]);
    add({places, count}, rows, scratch);
  }
}

/// Adds one rank's rows to the sums at these places.
void KeyedCombiner::add(std::span<const std::uint32_t> places, const std::byte* rows,
                        KeyedScratch& scratch) const {
  std::byte* const sums = scratch.sums_.get();
  const std::size_t row = geometry_.row_elements, row_bytes = geometry_.row_bytes();
  if (begins_with_zero_ && row == 1) {
    reduction_->combine_at(sums, rows, places.data(), places.size());
    return;
  }
  // Neighbours are added in one call if all of them have a sum, or if none has.
  std::uint8_t* const has = scratch.has_sum_.data();
  for (std::size_t first = 0, end; first < places.size(); first = end) {
    const std::uint32_t place = places[first];
    const bool adds = begins_with_zero_ || has[place] != 0;
    for (end = first + 1; end < places.size() && places[end] == place + (end - first) &&
                          (begins_with_zero_ || (has[places[end]] != 0) == adds);)
      ++end;
    (adds ? reduction_->combine : reduction_->load)(sums + place * sum_bytes_,
                                                    rows + first * row_bytes, (end - first) * row);
    std::fill_n(has + place, end - first, std::uint8_t{1});
  }
}

/// Writes the first sums in the form in which they travel or will be scaled.
void KeyedCombiner::store(std::byte* rows, std::size_t count, KeyedScratch& scratch) const {
  reduction_->store(rows, scratch.sums_.get(), count * geometry_.row_elements,
                    static_cast<std::uint32_t>(ranks()));
}

void KeyedCombiner::clear(std::size_t count, KeyedScratch& scratch) const {
  std::memset(scratch.sums_.get(), 0, count * sum_bytes_);
  std::fill_n(scratch.has_sum_.data(), count, std::uint8_t{0});
}

// ---------------------------------------------------------------------------------------- merging
/// Of the window's sums, keeps those that reach the threshold, behind those that are kept already.
/// Returns the first key that it did not look at, or `end`.
std::uint64_t KeyedCombiner::keep_what_reaches(std::size_t& kept, std::size_t most,
                                               std::size_t count, std::uint64_t end,
                                               KeyedScratch& scratch) const {
  const std::size_t row_bytes = geometry_.row_bytes();
  std::byte* const rows = scratch.rows_.get() + kept * row_bytes;
  std::uint64_t* const keys = scratch.keys_.get() + kept;
  store(rows, count, scratch);
  clear(count, scratch);
  const std::byte* values = rows;
  std::size_t values_bytes = row_bytes;
  const ElementType element = geometry_.type.element();
  if (is_float(element) && element_bytes(element) == 2) {
    values = scratch.widened_.get();
    values_bytes = 2 * row_bytes;
    numeric::block_reduction(element, Reduction::kSum)
        .load(scratch.widened_.get(), rows, count * geometry_.row_elements);
  }
  std::size_t reached = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double size =
        numeric::largest_magnitude(element, values + i * values_bytes, geometry_.row_elements);
    const bool is_rejected = size < threshold_;
    const bool is_full =
        is_rejected ? scratch.rejected_.size() == limits::kMostRejected : kept + reached == most;
    if (is_full) {
      end = keys[i];
      break;
    }
    if (is_rejected) {
      scratch.rejected_.push_back({keys[i], rejected_class(size, threshold_)});
      continue;
    }
    if (reached != i) std::memmove(rows + reached * row_bytes, rows + i * row_bytes, row_bytes);
    keys[reached++] = keys[i];
  }
  kept += reached;
  return end;
}

/// Writes keys and sums of a run.
void KeyedCombiner::write(const RunPlan& plan, std::span<std::byte> out,
                          KeyedScratch& scratch) const {
  const std::span<const std::uint64_t> keys(scratch.keys_.get(), plan.coding.keys);
  std::byte* rows = write_keys(plan.coding, keys, out);
  const bool are_stored = threshold_ != 0;
  if (!format_.is_scaled()) {
    if (are_stored)
      std::memcpy(rows, scratch.rows_.get(), keys.size() * geometry_.row_bytes());
    else
      store(rows, keys.size(), scratch);
    return;
  }
  if (!are_stored) store(scratch.rows_.get(), keys.size(), scratch);
  const std::uint16_t place = geometry_.place_of(stream_);
  for (std::size_t first = 0, end; first < keys.size(); first = end) {
    const std::uint64_t chunk = format_.chunk_of(keys[first]);
    for (end = first + 1; end < keys.size() && format_.chunk_of(keys[end]) == chunk;) ++end;
    const std::uint64_t number = geometry_.chunk_of(geometry_.key_of(place, keys[first]));
    const wire::Le<std::int16_t> scale = numeric::encode(
        geometry_.type, rows + sizeof scale, scratch.rows_.get() + first * geometry_.row_bytes(),
        (end - first) * geometry_.row_elements, rounder_.of(number));
    std::memcpy(rows, &scale, sizeof scale);
    rows += sizeof scale + format_.rows_bytes(end - first);
  }
}

/// Reads the window's keys. Writes their union to `out`, and ends the window sooner if there is no
/// room for more. Their places count from `first`.
std::size_t KeyedCombiner::unite(Window& window, std::size_t first, std::span<std::uint64_t> out,
                                 KeyedScratch& scratch) const {
  read_window(window, scratch);
  auto found =
      scratch.window_.collect(window.base, window.end, static_cast<std::uint32_t>(first), out);
  if (found.end != window.end) {
    window.end = static_cast<std::uint32_t>(chunk_begin(window.base + found.end) - window.base);
    while (found.count > 0 && out[found.count - 1] >= window.base + window.end) --found.count;
  }
  return found.count;
}

/// How many neighbours to look at: those that probably fill the result, if it has so many sums. A
/// few more, as another look costs more than keys that are left for the next round. `kept` of the
/// round's keys below `reached` are found.
std::uint64_t KeyedCombiner::window_for(std::size_t kept, std::uint64_t reached) const {
  std::uint64_t distance = fill_.distance;
  if (kept != 0) distance = (reached - horizon_) / kept + 1;
  if (distance >= KeyWindow::kKeys) return kLeastWindow;  // it has one key, mostly
  const std::uint64_t lacking = fill_.sums > kept ? fill_.sums - kept : 0;
  const std::uint64_t wanted = lacking + (lacking + kept) / 16 + 16;
  const std::uint64_t size =
      std::clamp<std::uint64_t>(wanted * distance, kLeastWindow, KeyWindow::kKeys);
  return size & ~(kLeastWindow - 1);
}

/// The least key that is left of all runs.
std::uint64_t KeyedCombiner::least_left(const KeyedScratch& scratch) const {
  std::uint64_t least = kNoKey;
  for (std::size_t r = 0; r < ranks(); ++r)
    least = std::min(least, scratch.cursors_[r].keys.next());
  return least;
}

KeyedCombiner::Merged KeyedCombiner::merge(std::span<std::byte> out, KeyedScratch& scratch) const {
  std::uint64_t end = kNoKey;
  for (std::size_t r = 0; r < ranks(); ++r) {
    scratch.cursors_[r] = runs_[r].left;
    end = std::min(end, runs_[r].following);
  }
  scratch.rejected_.clear();
  const std::size_t room = std::min(KeyedScratch::kMostKeys, KeyedScratch::kRowsBytes / sum_bytes_);
  const std::size_t most = format_.most_keys(out.size() - sizeof(wire::RunHeader));
  std::uint64_t* const keys = scratch.keys_.get();
  Merged merged;
  merged.next = end;
  RunPlan plan;
  // Without a threshold it is known which sums fit before any is computed.
  const bool is_planned_first = threshold_ == 0;
  std::size_t kept = 0, added = 0;
  std::size_t plan_at = std::max(keys_that_decide(out.size(), format_), fill_.sums + 1);
  Window window;
  const auto plan_result = [&] {
    plan = plan_run({keys, kept}, out.size(), format_, false);
    merged.is_full = plan.coding.keys < kept;
    plan_at = kept + kept / 8 + 1;
    if (!merged.is_full) return;
    kept = plan.coding.keys;
    merged.next = chunk_begin(keys[kept]);
  };
  bool is_cut = false;
  for (std::uint64_t least = least_left(scratch); least < end && !is_cut;) {
    const std::uint64_t size = window_for(kept, window.base + window.end);
    window.base = chunk_begin(least);
    window.end = static_cast<std::uint32_t>(std::min(end - window.base, size));
    const std::uint32_t whole = window.end;
    if (is_planned_first) {
      kept += unite(window, kept, {keys + kept, room - kept}, scratch);
      is_cut = window.end != whole;
      if (is_cut) merged.next = window.base + window.end;
    } else {
      const std::size_t count = unite(window, 0, {keys + kept, room - kept}, scratch);
      add_window(window, scratch);
      const std::uint64_t behind = window.base + window.end;
      std::uint64_t reached = keep_what_reaches(kept, most, count, behind, scratch);
      is_cut = reached != behind || window.end == 0;
      if (is_cut) merged.next = reached = chunk_begin(reached);
      while (kept > 0 && keys[kept - 1] >= reached) --kept;  // parts of a chunk
    }
    least = least_left(scratch);
    if (is_cut || least >= end || kept >= plan_at) plan_result();
    is_cut |= merged.is_full;
    if (is_planned_first) {
      if (merged.is_full)
        window.end = static_cast<std::uint32_t>(std::max(merged.next, window.base) - window.base);
      add_window(window, scratch);
      added = std::max(added, kept);
    }
    scratch.window_.clear(whole);
  }
  if (kept != 0) write(plan, out.first(plan.bytes), scratch);
  clear(added, scratch);
  for (const auto& [key, in_class] : scratch.rejected_)
    if (key < merged.next) ++merged.rejected[in_class];
  if (merged.next < window.base + window.end) leave_from(merged.next, window, scratch);
  merged.run = out.first(plan.bytes);
  merged.sums = plan.coding.keys;
  return merged;
}

/// Sets the cursors back to this key, which was passed.
void KeyedCombiner::leave_from(std::uint64_t next, const Window& last,
                               KeyedScratch& scratch) const {
  for (std::size_t r = 0; r < ranks(); ++r) {
    if (next >= last.base && scratch.in_window_[r] == 0) continue;
    scratch.cursors_[r] = next < last.base ? runs_[r].left : scratch.before_[r];
    skip(scratch.cursors_[r], next, scratch);
  }
}

RankSet KeyedCombiner::start_round(const Merged& merged, std::size_t room,
                                   const KeyedScratch& scratch) {
  RankSet contributors;
  const std::uint64_t bound =
      renewal_bound(horizon_, merged.next, static_cast<std::uint32_t>(merged.run.size()), room);
  if (merged.is_full)
    fill_ = {merged.sums,
             std::min((merged.next - horizon_) / merged.sums + 1, std::uint64_t{KeyWindow::kKeys})};
  horizon_ = merged.next;
  for (std::uint16_t r = 0; r < ranks(); ++r) {
    Run& run = runs_[r];
    run.left = scratch.cursors_[r];
    if (horizon_ != kNoKey && run.following >= bound) continue;
    contributors.insert(Rank{r});
    run = {};
  }
  return contributors;
}

}  // namespace sluice::aggregator
