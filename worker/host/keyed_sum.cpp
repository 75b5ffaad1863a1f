#include "worker/host/keyed_sum.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/numeric/kernels.hpp"
#include "common/numeric/magnitude.hpp"
#include "worker/memory/arena.hpp"

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
  ChunkSums(const KeyedGeometry& geometry, const OpRequest& request, std::uint32_t ranks)
      : geometry_(geometry),
        kernels_(numeric::block_reduction(geometry.type.element(), request.reduction)),
        ranks_(ranks),
        is_encoded_(request.is_encoded()),
        row_(geometry.row_elements),
        sum_bytes_(row_ * numeric::accumulator_bytes(geometry.type.element(), request.reduction)),
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
    const std::size_t row_bytes = geometry_.row_bytes();
    std::size_t count = 0;
    for (std::size_t word = 0; word < has_.size(); ++word)
      for (std::uint64_t bits = std::exchange(has_[word], 0); bits != 0; bits &= bits - 1) {
        const std::size_t offset = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        std::byte* const row = rows_.data() + count * row_bytes;
        kernels_.store(row, sums_.get() + offset * sum_bytes_, row_, ranks_);
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
  const std::uint32_t ranks_;
  const bool is_encoded_;
  const std::size_t row_;  // elements
  const std::size_t sum_bytes_;
  const std::unique_ptr<std::byte, Free> sums_;
  std::vector<std::byte> encoded_, rows_, widened_;
  std::array<std::uint64_t, 4> has_{};  // by offset
};

}  // namespace

void KeyedSum::Deallocate::operator()(std::byte* memory) const {
  memory::Arena::of_process().deallocate(memory);
}

KeyedSum::Memory KeyedSum::allocate(std::size_t bytes) {
  return Memory(memory::Arena::of_process().allocate(bytes));
}

KeyedSum::KeyedSum(const OpRequest& request, const Session& session, RankOf self)
    : request_(request),
      keyed_(*request_.keyed),
      self_(self),
      geometry_(*KeyedGeometry::make(keyed_.key_bound, keyed_.row_elements, request.wire_type(),
                                     session, 0)),
      own_(description()),
      of_all_(ranks() * own_.size()) {}

std::size_t KeyedSum::row_bytes() const {
  return keyed_.row_elements * element_bytes(request_.type);
}

/// Ranges begin where chunks do.
std::uint64_t KeyedSum::first_key_of(std::size_t range) const {
  const std::uint64_t chunks = geometry_.chunks();
  const std::uint64_t chunk = chunks / ranks() * range + std::min(chunks % ranks(), range);
  if (chunk >= chunks) return keyed_.key_bound;
  return chunk << geometry_.chunk_bits;
}

std::uint64_t KeyedSum::total(std::span<const std::uint64_t> counts) const {
  const auto add = [](std::uint64_t sum, std::uint64_t count) {
    const std::uint64_t most = std::uint64_t{1} << 48;  // what mates say may be anything
    return std::min(sum, most) + std::min(count, most);
  };
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}, add);
}

std::vector<std::uint64_t> KeyedSum::description() const {
  std::vector<std::uint64_t> all{keyed_.key_bound,
                                 keyed_.row_elements,
                                 static_cast<std::uint64_t>(request_.type),
                                 static_cast<std::uint64_t>(request_.reduction),
                                 request_.wire_type().code(),
                                 std::bit_cast<std::uint64_t>(keyed_.threshold),
                                 request_.rounding_seed};
  assert(all.size() == kDescribed.size());
  auto from = keyed_.keys.begin();
  for (std::size_t range = 0; range < ranks(); ++range) {
    const auto end = range + 1 == ranks()
                         ? keyed_.keys.end()
                         : std::lower_bound(from, keyed_.keys.end(), first_key_of(range + 1));
    all.push_back(static_cast<std::uint64_t>(end - from));
    from = end;
  }
  return all;
}

std::optional<AbortInfo> KeyedSum::disagreement() const {
  const std::size_t length = own_.size();
  for (std::size_t rank = 1; rank < ranks(); ++rank)
    for (std::size_t i = 0; i < kDescribed.size(); ++i)
      if (of_all_[rank * length + i] != of_all_[i])
        return AbortInfo{.reason = wire::AbortReason::kOpMismatch,
                         .field = kDescribed[i],
                         .rank_a = Rank{static_cast<std::uint16_t>(rank)},
                         .rank_b = Rank{0},
                         .value_a = of_all_[rank * length + i],
                         .value_b = of_all_[i],
                         .op = number_};
  return std::nullopt;
}

std::span<const std::uint64_t> KeyedSum::counts_of_ranges(std::size_t rank) const {
  const std::size_t length = kDescribed.size() + ranks();
  return std::span(of_all_).subspan(rank * length + kDescribed.size(), ranks());
}

// ----------------------------------------------------------------------------------- the steps
OpRequest KeyedSum::moves(Collective collective, ElementType type, const std::byte* input,
                          std::byte* output) const {
  OpRequest request;
  request.collective = collective;
  request.type = type;
  request.input = input;
  request.output = output;
  request.tag = request_.tag;
  request.timeout = request_.timeout;
  return request;
}

const KeyedSum::Step& KeyedSum::next(OpNumber number) {
  number_ = number;
  const auto bytes = [](auto& words) { return reinterpret_cast<std::byte*>(words.data()); };
  const auto times = [](std::vector<std::uint64_t> counts, std::uint64_t factor) {
    for (std::uint64_t& count : counts) count *= factor;
    return counts;
  };
  switch (phase_) {
    case Phase::kDescribe:
      step_ = {moves(Collective::kAllGather, ElementType::kInt64, bytes(own_), bytes(of_all_)),
               std::vector<std::uint64_t>(ranks(), own_.size())};
      break;
    case Phase::kKeys: {
      step_.counts.clear();
      keys_from_.clear();
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        const auto counts = counts_of_ranges(rank);
        step_.counts.insert(step_.counts.end(), counts.begin(), counts.end());
        keys_from_.push_back(counts[self_.rank]);
      }
      const std::uint64_t pairs = total(keys_from_);
      keys_ = allocate(pairs * sizeof(std::uint64_t));
      rows_ = allocate(pairs * row_bytes());
      step_.request = moves(Collective::kAllToAll, ElementType::kInt64,
                            reinterpret_cast<const std::byte*>(keyed_.keys.data()), keys_.get());
      break;
    }
    case Phase::kRows:
      step_ = {moves(Collective::kAllToAll, request_.type, keyed_.rows, rows_.get()),
               times(std::move(step_.counts), keyed_.row_elements)};
      break;
    case Phase::kCount:
      own_ = {range_size_};
      own_.insert(own_.end(), rejected_.begin(), rejected_.end());
      sums_told_.resize(ranks() * kCounted);
      step_ = {moves(Collective::kAllGather, ElementType::kInt64, bytes(own_), bytes(sums_told_)),
               std::vector<std::uint64_t>(ranks(), kCounted)};
      break;
    case Phase::kSumKeys: {
      step_.counts.clear();
      for (std::size_t rank = 0; rank < ranks(); ++rank)
        step_.counts.push_back(sums_told_[rank * kCounted]);
      size_ = total(step_.counts);
      sum_keys_ = allocate(size_ * sizeof(std::uint64_t));
      sum_rows_ = allocate(size_ * row_bytes());
      step_.request =
          moves(Collective::kAllGather, ElementType::kInt64, range_keys_.get(), sum_keys_.get());
      break;
    }
    case Phase::kSumRows:
      step_ = {moves(Collective::kAllGather, request_.type, range_rows_.get(), sum_rows_.get()),
               times(std::move(step_.counts), keyed_.row_elements)};
      break;
    case Phase::kDone:
      break;
  }
  lay_out(step_.request, self_, step_.counts);
  return step_;
}

std::optional<AbortInfo> KeyedSum::end_step() {
  const Phase ended = phase_;
  phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  // Mates have written this, so we know best what we have said.
  const auto put_own = [&](std::vector<std::uint64_t>& all) {
    std::copy(own_.begin(), own_.end(),
              all.begin() + static_cast<std::ptrdiff_t>(self_.rank * own_.size()));
  };
  if (ended == Phase::kDescribe) {
    put_own(of_all_);
    return disagreement();
  }
  if (ended == Phase::kCount) put_own(sums_told_);
  if (ended == Phase::kRows) return merge();
  if (ended == Phase::kSumRows) {
    range_keys_.reset();
    range_rows_.reset();
    return check_sums();
  }
  return std::nullopt;
}

/// A mate has not said what it should.
AbortInfo KeyedSum::broken(std::size_t rank) {
  return {.reason = wire::AbortReason::kRankDisconnected,
          .field = Field::kSharedMemory,
          .rank_a = Rank{static_cast<std::uint16_t>(rank)}};
}

/// Adds the pairs of our range, chunk by chunk, lowest rank first.
std::optional<AbortInfo> KeyedSum::merge() {
  struct Run {
    std::span<const std::uint64_t> keys;
    const std::byte* rows;
  };
  std::vector<Run> runs;
  const auto* keys = reinterpret_cast<const std::uint64_t*>(keys_.get());
  const std::byte* rows = rows_.get();
  const std::uint64_t begin = first_key_of(self_.rank), end = first_key_of(self_.rank + 1u);
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
  const std::uint64_t pairs = total(keys_from_);
  range_keys_ = allocate(pairs * sizeof(std::uint64_t));
  range_rows_ = allocate(pairs * row_bytes());
  auto* const sum_keys = reinterpret_cast<std::uint64_t*>(range_keys_.get());
  ChunkSums sums(geometry_, request_, self_.ranks);
  const auto rounder = [&](std::uint32_t by) {
    return numeric::Rounder{.seed = request_.rounding_seed, .op = number_, .by = by};
  };
  for (;;) {
    std::uint64_t number = kNoChunk;
    for (const Run& run : runs)
      if (!run.keys.empty()) number = std::min(number, geometry_.chunk_of(run.keys.front()));
    if (number == kNoChunk) break;
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      Run& run = runs[rank];
      const auto is_ours = [&](std::uint64_t key) { return geometry_.chunk_of(key) == number; };
      const auto last = std::find_if_not(run.keys.begin(), run.keys.end(), is_ours);
      const auto count = static_cast<std::size_t>(last - run.keys.begin());
      if (count == 0) continue;
      sums.add(run.keys.first(count), run.rows, rounder(rank).of(number));
      run = {run.keys.subspan(count), run.rows + count * row_bytes()};
    }
    range_size_ +=
        sums.take(number, keyed_.threshold, rounder(numeric::Rounder::kAggregator).of(number),
                  sum_keys + range_size_, range_rows_.get() + range_size_ * row_bytes(), rejected_);
  }
  keys_.reset();
  rows_.reset();
  return std::nullopt;
}

/// Callers write where keys say.
std::optional<AbortInfo> KeyedSum::check_sums() const {
  const std::span keys(reinterpret_cast<const std::uint64_t*>(sum_keys_.get()), size_);
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    std::uint64_t lowest = first_key_of(rank);
    const std::uint64_t end = first_key_of(rank + 1);
    for (std::uint64_t left = sums_told_[rank * kCounted]; left > 0; --left, ++at) {
      if (keys[at] < lowest || keys[at] >= end) return broken(rank);
      lowest = keys[at] + 1;
    }
  }
  return std::nullopt;
}

// ----------------------------------------------------------------------------------- the end
std::optional<Error> KeyedSum::finish() {
  const std::size_t pair_bytes = sizeof(std::uint64_t) + row_bytes();
  if (size_ > keyed_.result_bytes / pair_bytes) return too_many_sums(size_, keyed_, row_bytes());
  KeyedSums::InOrder pairs{.keys = std::shared_ptr<std::byte>(std::move(sum_keys_)),
                           .rows = std::shared_ptr<std::byte>(std::move(sum_rows_)),
                           .size = size_};
  *keyed_.sums = KeyedSums(geometry_, request_.type, std::move(pairs));
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    for (std::size_t i = 0; i < wire::kRejectedClasses; ++i)
      keyed_.sums->rejected[i] += sums_told_[rank * kCounted + 1 + i];
  return std::nullopt;
}

OpStatistics KeyedSum::statistics() const {
  OpStatistics statistics;
  const std::size_t pair_bytes = sizeof(std::uint64_t) + row_bytes();
  statistics.blocks_sent = keyed_.keys.size();
  statistics.blocks_received = size_;
  statistics.bytes_sent = statistics.blocks_sent * pair_bytes;
  statistics.bytes_received = statistics.blocks_received * pair_bytes;
  return statistics;
}

}  // namespace sluice::worker::host
