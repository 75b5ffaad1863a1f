#include "worker/host/keyed_sum.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>

#include "common/numeric/kernels.hpp"
#include "worker/host/window_sums.hpp"

namespace sluice::worker::host {
namespace {

using wire::Collective;
using wire::Field;

/// What a rank describes in front of its counts.
constexpr std::array kDescribed{Field::kKeyBound,    Field::kRowElements, Field::kOpType,
                                Field::kReduction,   Field::kWireType,    Field::kThreshold,
                                Field::kRoundingSeed};
/// What a rank reports of its range: how many sums, and how many of each class were rejected.
constexpr std::size_t kCounted = 1 + wire::kRejectedClasses;
/// More pairs than any host has: a count from a peer may be anything.
constexpr std::uint64_t kMostPairs = std::uint64_t{1} << 40;
/// Not a key of any pair: all keys are smaller.
constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

/// Larger copies are written past the caches, which could not hold them.
constexpr std::size_t kCachedBytes = std::size_t{4} << 20;

/// Copies pairs. Returns whether the keys are ascending.
bool copy_pairs(std::uint64_t* out_keys, std::byte* out_rows, std::span<const std::uint64_t> keys,
                const std::byte* rows, std::size_t row_bytes) {
  const std::size_t bytes = keys.size() * row_bytes;
  const bool past_caches = keys.size_bytes() + bytes > kCachedBytes;
  const bool rise = numeric::copy_rising(out_keys, keys.data(), keys.size(), past_caches);
  if (past_caches) {
    numeric::copy_past_caches(out_rows, rows, bytes);
    numeric::finish_copies_past_caches();
  } else if (bytes != 0) {
    std::memcpy(out_rows, rows, bytes);
  }
  return rise;
}

}  // namespace

// --------------------------------------------------------------------------------------- both
KeyedHalf::KeyedHalf(const OpRequest& request, const Session& session, KeyedRanks ranks)
    : request_(request),
      keyed_(*request_.keyed),
      ranks_(std::move(ranks)),
      geometry_(*KeyedGeometry::make(keyed_.key_bound, keyed_.row_elements, request.wire_type(),
                                     session, 0)) {
  assert(ranks_.self < this->ranks() && ranks_.ranges != 0 && ranks_.ranges <= this->ranks());
}

std::size_t KeyedHalf::row_bytes() const {
  return keyed_.row_elements * element_bytes(request_.type);
}

/// Ranges begin at chunks. For a rank without a range, and for all behind it, this is the bound of
/// keys.
std::uint64_t KeyedHalf::first_key_of(std::size_t rank) const {
  const std::uint64_t chunks = geometry_.chunks(), ranges = ranks_.ranges;
  if (rank >= ranges) return keyed_.key_bound;
  const std::uint64_t chunk =
      chunks / ranges * rank + std::min<std::uint64_t>(chunks % ranges, rank);
  if (chunk >= chunks) return keyed_.key_bound;
  return chunk << geometry_.chunk_bits;
}

std::uint64_t KeyedHalf::total(std::span<const std::uint64_t> counts) {
  const auto add = [](std::uint64_t sum, std::uint64_t count) {
    return std::min(sum, kMostPairs) + std::min(count, kMostPairs);
  };
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}, add);
}

MoveSequence::Move KeyedHalf::move_of(Collective collective, ElementType type, const void* input,
                                      void* output, std::vector<std::uint64_t> counts) const {
  Move move;
  move.request.collective = collective;
  move.request.type = type;
  move.request.input = static_cast<const std::byte*>(input);
  move.request.output = static_cast<std::byte*>(output);
  move.request.tag = request_.tag;
  move.request.timeout = request_.timeout;
  move.request.number_in_errors = request_.number_in_errors;
  move.counts = std::move(counts);
  lay_out(move.request, {ranks_.self, static_cast<std::uint16_t>(ranks())}, move.counts);
  return move;
}

std::vector<std::uint64_t> KeyedHalf::elements_of(std::vector<std::uint64_t> keys) const {
  for (std::uint64_t& count : keys) count *= keyed_.row_elements;
  return keys;
}

/// Puts back our own values: peers can write to the array of all values.
void KeyedHalf::put_own(const std::vector<std::uint64_t>& own,
                        std::vector<std::uint64_t>& all) const {
  std::copy(own.begin(), own.end(),
            all.begin() + static_cast<std::ptrdiff_t>(ranks_.self * own.size()));
}

/// Empty if peers cannot access them.
KeyedHalf::Placed KeyedHalf::placed(const PairsAt& own, std::uint64_t pairs) const {
  if (!peers_) return {};
  if (pairs == 0) return {1};
  if (reinterpret_cast<std::uintptr_t>(own.rows) % element_bytes(request_.type) != 0) return {};
  const auto keys = peers_->place_of(std::as_bytes(std::span(own.keys, pairs)));
  const auto rows = peers_->place_of({own.rows, pairs * row_bytes()});
  if (!keys || !rows) return {};
  return {1, keys->region, keys->offset, rows->region, rows->offset};
}

/// Whether every rank's pairs can be accessed, by the values that each has sent.
bool KeyedHalf::are_all_reached(std::span<const std::uint64_t> counts, std::size_t at) const {
  const std::size_t length = counts.size() / ranks();
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    if (counts[rank * length + at] != 1) return false;
  return true;
}

/// The pairs of a peer, at the address that it sent. Nothing if it has none there.
std::optional<KeyedHalf::PairsAt> KeyedHalf::read(LocalRank peer,
                                                  std::span<const std::uint64_t> placed,
                                                  std::uint64_t first, std::uint64_t pairs) const {
  if (pairs == 0) return PairsAt{};
  if (first > kMostPairs || pairs > kMostPairs) return std::nullopt;
  constexpr std::size_t kKeyBytes = sizeof(std::uint64_t);
  const Place keys{placed[1], placed[2] + first * kKeyBytes};
  const Place rows{placed[3], placed[4] + first * row_bytes()};
  if (keys.offset % kKeyBytes != 0 || rows.offset % element_bytes(request_.type) != 0)
    return std::nullopt;
  const std::byte* const keys_at = peers_->read_at(peer, keys, pairs * kKeyBytes);
  const std::byte* const rows_at = peers_->read_at(peer, rows, pairs * row_bytes());
  if (!keys_at || !rows_at) return std::nullopt;
  return PairsAt{reinterpret_cast<const std::uint64_t*>(keys_at), rows_at};
}

/// The failure of a peer that has sent impossible values.
AbortInfo KeyedHalf::broken(std::size_t rank) const {
  return {.reason = wire::AbortReason::kRankDisconnected,
          .field = Field::kSharedMemory,
          .rank_a = ranks_.all[rank]};
}

// --------------------------------------------------------------------------------------- merge
/// Where our pairs lie, or a copy of them.
KeyedHalf::Placed KeyedMerge::place_own() {
  const std::uint64_t pairs = keyed_.keys.size();
  const Placed where_they_are = placed({keyed_.keys.data(), keyed_.rows}, pairs);
  if (!peers_ || where_they_are[0] != 0) return where_they_are;
  copy_ = take_memory(pairs);
  copy_pairs(copy_.keys(), copy_.rows(), keyed_.keys, keyed_.rows, row_bytes());
  return placed({copy_.keys(), copy_.rows()}, pairs);
}

std::vector<std::uint64_t> KeyedMerge::description() {
  std::vector<std::uint64_t> all{keyed_.key_bound,
                                 keyed_.row_elements,
                                 static_cast<std::uint64_t>(request_.type),
                                 static_cast<std::uint64_t>(request_.reduction),
                                 request_.wire_type().code(),
                                 std::bit_cast<std::uint64_t>(keyed_.threshold),
                                 request_.rounding_seed};
  assert(all.size() == kDescribed.size());
  const Placed where = place_own();
  all.insert(all.end(), where.begin(), where.end());
  auto from = keyed_.keys.begin();
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const auto end = std::lower_bound(from, keyed_.keys.end(), first_key_of(rank + 1));
    all.push_back(static_cast<std::uint64_t>(end - from));
    from = end;
  }
  return all;
}

std::optional<AbortInfo> KeyedMerge::disagreement() const {
  const std::size_t length = own_.size();
  for (std::size_t rank = 1; rank < ranks(); ++rank)
    for (std::size_t i = 0; i < kDescribed.size(); ++i)
      if (of_all_[rank * length + i] != of_all_[i])
        return AbortInfo{.reason = wire::AbortReason::kOpMismatch,
                         .field = kDescribed[i],
                         .rank_a = ranks_.all[rank],
                         .rank_b = ranks_.all[0],
                         .value_a = of_all_[rank * length + i],
                         .value_b = of_all_[i],
                         .op = request_.number_in_errors.value_or(number_)};
  return std::nullopt;
}

std::span<const std::uint64_t> KeyedMerge::counts_of_ranges(std::size_t rank) const {
  const std::size_t before = kDescribed.size() + kPlaced;
  return std::span(of_all_).subspan(rank * (before + ranks()) + before, ranks());
}

const MoveSequence::Move& KeyedMerge::next(OpNumber number) {
  number_ = number;
  switch (phase_) {
    case Phase::kDescribe:
      own_ = description();
      of_all_.resize(ranks() * own_.size());
      move_ = move_of(Collective::kAllGather, ElementType::kInt64, own_.data(), of_all_.data(),
                      std::vector<std::uint64_t>(ranks(), own_.size()));
      break;
    case Phase::kKeys: {
      std::vector<std::uint64_t> of_all;
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        const auto counts = counts_of_ranges(rank);
        of_all.insert(of_all.end(), counts.begin(), counts.end());
      }
      came_ = take_memory(total(keys_from_));
      move_ = move_of(Collective::kAllToAll, ElementType::kInt64, keyed_.keys.data(), came_.keys(),
                      std::move(of_all));
      break;
    }
    case Phase::kRows:
      move_ = move_of(Collective::kAllToAll, request_.type, keyed_.rows, came_.rows(),
                      elements_of(std::move(move_.counts)));
      break;
    case Phase::kDone:
      break;
  }
  return move_;
}

std::optional<AbortInfo> KeyedMerge::end_move() {
  switch (phase_) {
    case Phase::kDescribe:
      return end_describe();
    case Phase::kKeys:
      phase_ = Phase::kRows;
      return std::nullopt;
    case Phase::kRows:
      phase_ = Phase::kDone;
      return merge_moved();
    case Phase::kDone:
      break;
  }
  return std::nullopt;
}

std::optional<AbortInfo> KeyedMerge::end_describe() {
  put_own(own_, of_all_);
  const bool is_read = are_all_reached(of_all_, kDescribed.size());
  phase_ = is_read ? Phase::kDone : Phase::kKeys;
  if (const auto why = disagreement()) return why;
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    keys_from_.push_back(counts_of_ranges(rank)[ranks_.self]);
  if (is_read) return merge_where_they_lie();
  copy_ = {};
  return std::nullopt;
}

std::optional<AbortInfo> KeyedMerge::merge_where_they_lie() {
  std::vector<Run> runs;
  for (LocalRank rank = 0; rank < ranks(); ++rank) {
    const std::uint64_t before = total(counts_of_ranges(rank).first(ranks_.self));
    const std::size_t described = rank * own_.size() + kDescribed.size();
    const std::uint64_t pairs = keys_from_[rank];
    const auto at = read(rank, std::span(of_all_).subspan(described, kPlaced), before, pairs);
    if (!at) return broken(rank);
    runs.push_back({{at->keys, pairs}, at->rows});
  }
  return merge(std::move(runs));
}

std::optional<AbortInfo> KeyedMerge::merge_moved() {
  std::vector<Run> runs;
  const std::uint64_t* keys = came_.keys();
  const std::byte* rows = came_.rows();
  for (const std::uint64_t count : keys_from_) {
    runs.push_back({{keys, count}, rows});
    keys += count;
    rows += count * row_bytes();
  }
  const auto why = merge(std::move(runs));
  came_ = {};
  return why;
}

/// Adds the pairs of our range: window by window, lowest rank first.
std::optional<AbortInfo> KeyedMerge::merge(std::vector<Run> runs) {
  range_.pairs = take_memory(total(keys_from_) + WindowSums::kSpare);
  KeyedGeometry geometry = geometry_;
  if (ranks_.has_other_hosts()) geometry.type = request_.type;
  const double threshold = ranks_.has_other_hosts() ? 0 : keyed_.threshold;
  WindowSums sums(geometry, request_.type, request_.reduction, ranks_.of_job);
  const std::uint64_t end = first_key_of(ranks_.self + 1u);
  std::uint64_t next = first_key_of(ranks_.self);  // no key may be below this
  for (;;) {
    std::uint64_t lowest = kNoKey;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (runs[rank].keys.empty()) continue;
      const std::uint64_t key = runs[rank].keys.front();
      if (key < next || key >= end) return broken(rank);
      lowest = std::min(lowest, key);
    }
    if (lowest == kNoKey) break;
    next = sums.begin_at(lowest, end);
    const std::uint64_t number = geometry.chunk_of(lowest);  // what is rounded is a chunk
    const auto rounding = [&](std::uint32_t by) {
      return numeric::Rounder{.seed = request_.rounding_seed, .op = number_, .by = by}.of(number);
    };
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      Run& run = runs[rank];
      const std::size_t count = sums.add(run.keys, run.rows, rounding(ranks_.all[rank].value));
      run = {run.keys.subspan(count), run.rows + count * row_bytes()};
    }
    range_.size += sums.take(threshold, rounding(numeric::Rounder::kAggregator),
                             range_.pairs.keys() + range_.size,
                             range_.pairs.rows() + range_.size * row_bytes(), range_.rejected);
  }
  return std::nullopt;
}

// --------------------------------------------------------------------------------------- spread
const MoveSequence::Move& KeyedSpread::next(OpNumber) {
  switch (phase_) {
    case Phase::kCount: {
      own_ = {range_.size};
      own_.insert(own_.end(), range_.rejected.begin(), range_.rejected.end());
      const Placed where = placed({range_.pairs.keys(), range_.pairs.rows()}, range_.size);
      own_.insert(own_.end(), where.begin(), where.end());
      counts_.resize(ranks() * own_.size());
      move_ = move_of(Collective::kAllGather, ElementType::kInt64, own_.data(), counts_.data(),
                      std::vector<std::uint64_t>(ranks(), own_.size()));
      break;
    }
    case Phase::kRead:
      move_ = move_of(Collective::kBarrier, ElementType::kInt64, nullptr, nullptr, {0});
      break;
    case Phase::kKeys:
      sums_ = take_memory(size_);
      move_ = move_of(Collective::kAllGather, ElementType::kInt64, range_.pairs.keys(),
                      sums_.keys(), sizes());
      break;
    case Phase::kRows:
      move_ = move_of(Collective::kAllGather, request_.type, range_.pairs.rows(), sums_.rows(),
                      elements_of(sizes()));
      break;
    case Phase::kDone:
      break;
  }
  return move_;
}

std::optional<AbortInfo> KeyedSpread::end_move() {
  switch (phase_) {
    case Phase::kCount: {
      put_own(own_, counts_);
      size_ = total(sizes());
      const bool are_read = are_all_reached(counts_, kCounted);
      phase_ = are_read ? Phase::kRead : Phase::kKeys;
      return are_read ? read_sums() : std::nullopt;
    }
    case Phase::kKeys:
      phase_ = Phase::kRows;
      return std::nullopt;
    case Phase::kRead:
    case Phase::kRows:
      break;
    case Phase::kDone:
      return std::nullopt;
  }
  const bool were_moved = phase_ == Phase::kRows;
  phase_ = Phase::kDone;
  range_.pairs = {};
  return were_moved ? check_sums() : std::nullopt;
}

/// How many sums each range has.
std::vector<std::uint64_t> KeyedSpread::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (std::size_t at = 0; at < counts_.size(); at += kCounted + kPlaced)
    sizes.push_back(counts_[at]);
  return sizes;
}

/// Copies the sums from where they lie.
std::optional<AbortInfo> KeyedSpread::read_sums() {
  sums_ = take_memory(size_);
  std::uint64_t* keys = sums_.keys();
  std::byte* rows = sums_.rows();
  for (LocalRank rank = 0; rank < ranks(); ++rank) {
    const auto of_rank = std::span(counts_).subspan(rank * own_.size(), own_.size());
    const std::uint64_t size = of_rank[0];
    const auto at = read(rank, of_rank.subspan(kCounted), 0, size);
    if (!at) return broken(rank);
    const std::span<std::uint64_t> copied(keys, size);
    if (!copy_pairs(keys, rows, {at->keys, size}, at->rows, row_bytes()) ||
        !are_in_range(rank, copied))
      return broken(rank);
    keys += size;
    rows += size * row_bytes();
  }
  return std::nullopt;
}

/// Checks the keys, as the caller's memory is written at places that follow from them.
bool KeyedSpread::are_in_range(LocalRank rank, std::span<const std::uint64_t> keys) const {
  return keys.empty() ||
         (keys.front() >= first_key_of(rank) && keys.back() < first_key_of(rank + 1u));
}

std::optional<AbortInfo> KeyedSpread::check_sums() const {
  std::uint64_t* at = sums_.keys();
  const auto sizes = this->sizes();
  for (LocalRank rank = 0; rank < ranks(); ++rank) {
    const std::span<const std::uint64_t> keys(at, sizes[rank]);
    const auto falls = [](std::uint64_t a, std::uint64_t b) { return a >= b; };
    if (!are_in_range(rank, keys) ||
        std::adjacent_find(keys.begin(), keys.end(), falls) != keys.end())
      return broken(rank);
    at += keys.size();
  }
  return std::nullopt;
}

std::optional<Error> KeyedSpread::finish() {
  const std::size_t pair_bytes = sizeof(std::uint64_t) + row_bytes();
  if (size_ > keyed_.result_bytes / pair_bytes) return too_many_sums(size_, keyed_, row_bytes());
  *keyed_.sums = KeyedSums(geometry_, request_.type,
                           {.keys = sums_.take_keys(), .rows = sums_.take_rows(), .size = size_});
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    for (std::size_t i = 0; i < wire::kRejectedClasses; ++i)
      keyed_.sums->rejected[i] += counts_[rank * own_.size() + 1 + i];
  return std::nullopt;
}

OpStatistics KeyedSpread::statistics() const {
  OpStatistics statistics;
  const std::size_t pair_bytes = sizeof(std::uint64_t) + row_bytes();
  statistics.blocks_sent = keyed_.keys.size();
  statistics.blocks_received = size_;
  statistics.bytes_sent = statistics.blocks_sent * pair_bytes;
  statistics.bytes_received = statistics.blocks_received * pair_bytes;
  return statistics;
}

// --------------------------------------------------------------------------------------- both
std::optional<AbortInfo> KeyedSum::end_move() {
  if (merge_.is_done()) return spread_.end_move();
  const auto why = merge_.end_move();
  if (merge_.is_done() && !why) spread_.begin_with(merge_.take_range());
  return why;
}

void KeyedSum::reach(PeerAccess& peers) {
  merge_.reach(peers);
  spread_.reach(peers);
}

void KeyedSum::set_timeout(const OpTimeout& timeout) {
  merge_.set_timeout(timeout);
  spread_.set_timeout(timeout);
}

}  // namespace sluice::worker::host
