#include "worker/host/keyed_sum.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>

#include "common/numeric/kernels.hpp"
#include "common/numeric/magnitude.hpp"

namespace sluice::worker::host {
namespace {

using wire::Collective;
using wire::Field;

/// What a rank describes before its counts.
constexpr std::array kDescribed{Field::kKeyBound,    Field::kRowElements, Field::kOpType,
                                Field::kReduction,   Field::kWireType,    Field::kThreshold,
                                Field::kRoundingSeed};
/// What it tells of its range: how many sums, and how many of each class were rejected.
constexpr std::size_t kCounted = 1 + wire::kRejectedClasses;

/// The sums of one chunk at a time: rows by their offsets in it.
class ChunkSums {
 public:
  /// `type`: of the caller's rows; of the geometry, as they travel. `divisor`: of an average.
  ChunkSums(const KeyedGeometry& geometry, ElementType type, Reduction reduction,
            std::uint32_t divisor)
      : geometry_(geometry),
        kernels_(numeric::block_reduction(geometry.type.element(), reduction)),
        divisor_(divisor),
        is_encoded_(geometry.type != type),
        is_float_(type == ElementType::kFloat32 && !is_encoded_ && geometry.row_elements == 1 &&
                  reduction == Reduction::kSum),
        row_(geometry.row_elements),
        sum_bytes_(row_ * numeric::accumulator_bytes(geometry.type.element(), reduction)),
        sums_(static_cast<std::byte*>(std::aligned_alloc(
            numeric::kAccumulatorAlignment,
            (geometry.chunk_keys() * sum_bytes_ + numeric::kAccumulatorAlignment - 1) /
                numeric::kAccumulatorAlignment * numeric::kAccumulatorAlignment))),
        encoded_(geometry.chunk_keys() * row_ * sizeof(double)),
        rows_(encoded_.size()),
        widened_(encoded_.size()) {
    if (!sums_) throw std::bad_alloc();
  }

  /// One rank's pairs of the chunk, whose rows are the caller's: as they would have travelled.
  void add(std::span<const std::uint64_t> keys, const std::byte* rows, numeric::Rounding rounding) {
    if (is_float_) return add_floats(keys, rows);
    const std::size_t elements = keys.size() * row_;
    if (is_encoded_) {
      const auto scale = numeric::encode(geometry_.type, encoded_.data(), rows, elements, rounding);
      rows = encoded_.data();
      if (geometry_.type.is_scaled()) {
        numeric::decode(geometry_.type, rows_.data(), rows, {elements, 0, elements}, scale);
        rows = rows_.data();
      }
    }
    const std::uint64_t mask = geometry_.chunk_keys() - 1;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t offset = keys[i] & mask;
      const bool has = has_[offset / 64] >> (offset % 64) & 1;
      (has ? kernels_.combine : kernels_.load)(sums_.get() + offset * sum_bytes_,
                                               rows + i * geometry_.row_bytes(), row_);
      has_[offset / 64] |= std::uint64_t{1} << (offset % 64);
    }
  }

  /// Appends the sums, all or those that reach the threshold, to `keys` and `rows`, which are the
  /// caller's again, and begins anew. Returns how many.
  std::size_t take(std::uint64_t number, double threshold, numeric::Rounding rounding,
                   std::uint64_t* keys, std::byte* rows,
                   std::array<std::uint64_t, wire::kRejectedClasses>& rejected) {
    if (is_float_ && threshold == 0) return take_floats(number, keys, rows);
    const std::size_t row_bytes = geometry_.row_bytes();
    std::size_t count = 0;
    for (std::size_t word = 0; word < has_.size(); ++word)
      for (std::uint64_t bits = std::exchange(has_[word], 0); bits != 0; bits &= bits - 1) {
        const std::size_t offset = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        std::byte* const row = rows_.data() + count * row_bytes;
        kernels_.store(row, sums_.get() + offset * sum_bytes_, row_, divisor_);
        if (threshold != 0 && is_rejected(row, threshold, rejected)) continue;
        keys[count++] = (number << geometry_.chunk_bits) + offset;
      }
    const std::size_t elements = count * row_;
    if (!is_encoded_) {
      std::memcpy(rows, rows_.data(), count * row_bytes);
    } else if (!geometry_.type.is_scaled()) {
      numeric::decode(geometry_.type, rows, rows_.data(), {elements, 0, elements}, 0);
    } else if (count != 0) {
      const auto scale =
          numeric::encode(geometry_.type, encoded_.data(), rows_.data(), elements, rounding);
      numeric::decode(geometry_.type, rows, encoded_.data(), {elements, 0, elements}, scale);
    }
    return count;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  // One fp32 for each key, as is most common: a kernel for each would take longer than the sum.
  void add_floats(std::span<const std::uint64_t> keys, const std::byte* rows) {
    auto* const sums = reinterpret_cast<float*>(sums_.get());
    const std::uint64_t mask = geometry_.chunk_keys() - 1;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t offset = keys[i] & mask;
      float value = 0;
      std::memcpy(&value, rows + i * sizeof(float), sizeof(float));
      const bool has = (has_[offset / 64] >> (offset % 64) & 1) != 0;
      sums[offset] = has ? sums[offset] + value : value;
      has_[offset / 64] |= std::uint64_t{1} << (offset % 64);
    }
  }
  std::size_t take_floats(std::uint64_t number, std::uint64_t* keys, std::byte* rows) {
    const std::uint64_t first = number << geometry_.chunk_bits;
    std::size_t count = 0;
    for (std::size_t word = 0; word < has_.size(); ++word)
      for (std::uint64_t bits = std::exchange(has_[word], 0); bits != 0; bits &= bits - 1) {
        const std::size_t offset = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        std::memcpy(rows + count * sizeof(float), sums_.get() + offset * sizeof(float),
                    sizeof(float));
        keys[count++] = first + offset;
      }
    return count;
  }

  bool is_rejected(const std::byte* row, double threshold,
                   std::array<std::uint64_t, wire::kRejectedClasses>& rejected) {
    const ElementType element = geometry_.type.element();
    if (is_float(element) && element_bytes(element) == 2) {
      numeric::block_reduction(element, Reduction::kSum).load(widened_.data(), row, row_);
      row = widened_.data();
    }
    const double size = numeric::largest_magnitude(element, row, row_);
    if (!(size < threshold)) return false;
    ++rejected[rejected_class(size, threshold)];
    return true;
  }

  const KeyedGeometry& geometry_;
  const numeric::BlockReduction& kernels_;
  const std::uint32_t divisor_;
  const bool is_encoded_;
  const bool is_float_;
  const std::size_t row_;  // elements
  const std::size_t sum_bytes_;
  const std::unique_ptr<std::byte, Free> sums_;
  std::vector<std::byte> encoded_, rows_, widened_;
  std::array<std::uint64_t, 4> has_{};  // by offset
};

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

/// Ranges begin where chunks do. Of a rank that has none, and of those behind it, the bound.
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
    const std::uint64_t most = std::uint64_t{1} << 48;  // what mates say may be anything
    return std::min(sum, most) + std::min(count, most);
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

/// Mates have written what all have told, so we know best what we have said.
void KeyedHalf::put_own(const std::vector<std::uint64_t>& own,
                        std::vector<std::uint64_t>& all) const {
  std::copy(own.begin(), own.end(),
            all.begin() + static_cast<std::ptrdiff_t>(ranks_.self * own.size()));
}

/// A mate has not said what it should.
AbortInfo KeyedHalf::broken(std::size_t rank) const {
  return {.reason = wire::AbortReason::kRankDisconnected,
          .field = Field::kSharedMemory,
          .rank_a = ranks_.all[rank]};
}

// --------------------------------------------------------------------------------------- merge
std::vector<std::uint64_t> KeyedMerge::description() const {
  std::vector<std::uint64_t> all{keyed_.key_bound,
                                 keyed_.row_elements,
                                 static_cast<std::uint64_t>(request_.type),
                                 static_cast<std::uint64_t>(request_.reduction),
                                 request_.wire_type().code(),
                                 std::bit_cast<std::uint64_t>(keyed_.threshold),
                                 request_.rounding_seed};
  assert(all.size() == kDescribed.size());
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
  const std::size_t length = kDescribed.size() + ranks();
  return std::span(of_all_).subspan(rank * length + kDescribed.size(), ranks());
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
      keys_from_.clear();
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        const auto counts = counts_of_ranges(rank);
        of_all.insert(of_all.end(), counts.begin(), counts.end());
        keys_from_.push_back(counts[ranks_.self]);
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
  const Phase ended = phase_;
  phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  if (ended == Phase::kDescribe) {
    put_own(own_, of_all_);
    return disagreement();
  }
  if (ended == Phase::kRows) return merge();
  return std::nullopt;
}

/// Adds the pairs of our range, chunk by chunk, lowest rank first.
std::optional<AbortInfo> KeyedMerge::merge() {
  struct Run {
    std::span<const std::uint64_t> keys;
    const std::byte* rows;
  };
  std::vector<Run> runs;
  const std::uint64_t* keys = came_.keys();
  const std::byte* rows = came_.rows();
  const std::uint64_t begin = first_key_of(ranks_.self), end = first_key_of(ranks_.self + 1u);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const std::span run(keys, keys_from_[rank]);
    const auto falls = [](std::uint64_t a, std::uint64_t b) { return a >= b; };
    if (!run.empty() && (run.front() < begin || run.back() >= end ||
                         std::adjacent_find(run.begin(), run.end(), falls) != run.end()))
      return broken(rank);
    runs.push_back({run, rows});
    keys += run.size();
    rows += run.size() * row_bytes();
  }
  range_.pairs = take_memory(total(keys_from_));
  KeyedGeometry geometry = geometry_;
  if (ranks_.has_other_hosts()) geometry.type = request_.type;
  const double threshold = ranks_.has_other_hosts() ? 0 : keyed_.threshold;
  ChunkSums sums(geometry, request_.type, request_.reduction, ranks_.of_job);
  const auto rounder = [&](std::uint32_t by) {
    return numeric::Rounder{.seed = request_.rounding_seed, .op = number_, .by = by};
  };
  for (;;) {
    std::uint64_t number = kNoChunk;
    for (const Run& run : runs)
      if (!run.keys.empty()) number = std::min(number, geometry.chunk_of(run.keys.front()));
    if (number == kNoChunk) break;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      Run& run = runs[rank];
      const auto is_ours = [&](std::uint64_t key) { return geometry.chunk_of(key) == number; };
      const auto last = std::find_if_not(run.keys.begin(), run.keys.end(), is_ours);
      const auto count = static_cast<std::size_t>(last - run.keys.begin());
      if (count == 0) continue;
      sums.add(run.keys.first(count), run.rows, rounder(ranks_.all[rank].value).of(number));
      run = {run.keys.subspan(count), run.rows + count * row_bytes()};
    }
    range_.size += sums.take(number, threshold, rounder(numeric::Rounder::kAggregator).of(number),
                             range_.pairs.keys() + range_.size,
                             range_.pairs.rows() + range_.size * row_bytes(), range_.rejected);
  }
  came_ = {};
  return std::nullopt;
}

// --------------------------------------------------------------------------------------- spread
const MoveSequence::Move& KeyedSpread::next(OpNumber) {
  switch (phase_) {
    case Phase::kCount:
      own_ = {range_.size};
      own_.insert(own_.end(), range_.rejected.begin(), range_.rejected.end());
      told_.resize(ranks() * kCounted);
      move_ = move_of(Collective::kAllGather, ElementType::kInt64, own_.data(), told_.data(),
                      std::vector<std::uint64_t>(ranks(), kCounted));
      break;
    case Phase::kKeys: {
      std::vector<std::uint64_t> sizes;
      for (std::size_t rank = 0; rank < ranks(); ++rank) sizes.push_back(told_[rank * kCounted]);
      size_ = total(sizes);
      sums_ = take_memory(size_);
      move_ = move_of(Collective::kAllGather, ElementType::kInt64, range_.pairs.keys(),
                      sums_.keys(), std::move(sizes));
      break;
    }
    case Phase::kRows:
      move_ = move_of(Collective::kAllGather, request_.type, range_.pairs.rows(), sums_.rows(),
                      elements_of(std::move(move_.counts)));
      break;
    case Phase::kDone:
      break;
  }
  return move_;
}

std::optional<AbortInfo> KeyedSpread::end_move() {
  const Phase ended = phase_;
  phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  if (ended == Phase::kCount) put_own(own_, told_);
  if (ended != Phase::kRows) return std::nullopt;
  range_.pairs = {};
  return check_sums();
}

/// Callers write where keys say.
std::optional<AbortInfo> KeyedSpread::check_sums() const {
  const std::span<const std::uint64_t> keys(sums_.keys(), size_);
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    std::uint64_t lowest = first_key_of(rank);
    const std::uint64_t end = first_key_of(rank + 1);
    for (std::uint64_t left = told_[rank * kCounted]; left > 0; --left, ++at) {
      if (keys[at] < lowest || keys[at] >= end) return broken(rank);
      lowest = keys[at] + 1;
    }
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
      keyed_.sums->rejected[i] += told_[rank * kCounted + 1 + i];
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

void KeyedSum::set_timeout(const OpTimeout& timeout) {
  merge_.set_timeout(timeout);
  spread_.set_timeout(timeout);
}

}  // namespace sluice::worker::host
