#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <sluice/compress.hpp>

#include "common/numeric/compression.hpp"
#include "worker/compress/tensor_checks.hpp"

namespace sluice {
namespace {

void check_residual(const char* call, std::span<const float> gradients, std::span<float> residual) {
  if (!residual.empty() && residual.size() != gradients.size())
    refuse(call, quantity("residual", residual.size(), gradients.size()) + ", or none");
  if (overlap(gradients, residual)) refuse(call, "residual and gradients overlap");
}

numeric::FeedbackBlocks checked(const char* call, const BlockCompression& given) {
  const std::size_t count = given.gradients.size();
  check_residual(call, given.gradients, given.residual);
  if (given.out.size() != count) refuse(call, quantity("out", given.out.size(), count));
  if (overlap(given.residual, given.out)) refuse(call, "residual and out overlap");
  if (given.out.data() != given.gradients.data() && overlap(given.gradients, given.out))
    refuse(call, "out overlaps gradients, but is not the same");
  if (given.block_elements == 0) refuse(call, "block_elements is 0; 1 or more expected");
  const std::uint64_t words = block_count(block_count(count, given.block_elements), 64);
  if (given.sent_blocks.size() != words)
    refuse(call, "sent_blocks has " + std::to_string(given.sent_blocks.size()) + " words, " +
                     std::to_string(words) + " expected");
  if (!(given.divisor > 0) || !std::isfinite(given.divisor))
    refuse(call,
           "divisor is " + std::to_string(given.divisor) + "; a finite number above 0 expected");
  return {.gradients = given.gradients.data(),
          .residual = given.residual.empty() ? nullptr : given.residual.data(),
          .out = given.out.data(),
          .count = count,
          .block_elements = given.block_elements,
          .divisor = given.divisor};
}

void set_bit(std::span<std::uint64_t> bits, std::uint64_t at) {
  bits[at / 64] |= std::uint64_t{1} << (at % 64);
}

/// Sets the bits of the k largest scores, and no others. Of equal scores the first ones are chosen.
/// No score is NaN.
void choose_largest(const std::vector<double>& scores, std::uint64_t k,
                    std::span<std::uint64_t> bits) {
  std::fill(bits.begin(), bits.end(), 0);
  if (k == 0 || scores.empty()) return;
  k = std::min<std::uint64_t>(k, scores.size());
  std::vector<double> order(scores);
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(order.begin(), last, order.end(), std::greater<>());
  const double limit = *last;
  std::uint64_t ties =
      k - static_cast<std::uint64_t>(
              std::count_if(order.begin(), last, [limit](double score) { return score > limit; }));
  for (std::uint64_t block = 0; block < scores.size(); ++block) {
    if (scores[block] < limit || (scores[block] == limit && ties == 0)) continue;
    if (scores[block] == limit) --ties;
    set_bit(bits, block);
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();

/// A score that is not finite is above all others.
double score_of(double energy) {
  return energy <= kLargest ? energy : kInfinity;
}

/// Energies of floats, and their quotients, are far below the largest double.
double ratio_score(double energy, double weight) {
  if (!(energy <= kLargest) || !(weight <= kLargest)) return kInfinity;
  if (energy == 0) return 0;
  return weight == 0 ? kLargest : energy / weight;
}

std::vector<double> energies_of(const numeric::FeedbackBlocks& blocks) {
  std::vector<double> energies(blocks.block_count());
  numeric::block_energies(blocks, energies.data());
  return energies;
}

/// Vigna's splitmix64: a good generator for few numbers from any seed. It is written here because
/// every rank must get the same numbers, whatever its standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E37'79B9'7F4A'7C15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
    return z ^ (z >> 31);
  }

  /// Returns 0 .. bound - 1. The bias is below 2^-32 for bounds below 2^32.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{next()} * bound) >> 64);
  }

 private:
  std::uint64_t state_;
};

// ---------------------------------------------------------------- elements

constexpr std::size_t kChunk = 4096;  ///< elements whose magnitudes stay in the L1 cache

/// Calls `visit` with spans of the sums' magnitudes.
template <class Visit>
void for_magnitudes(std::span<const float> gradients, std::span<const float> residual,
                    Visit&& visit) {
  std::array<std::uint32_t, kChunk> magnitudes;
  for (std::size_t at = 0; at < gradients.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, gradients.size() - at);
    numeric::sum_magnitudes(gradients.data() + at,
                            residual.empty() ? nullptr : residual.data() + at, count,
                            magnitudes.data());
    visit(std::span<const std::uint32_t>(magnitudes.data(), count));
  }
}

/// The bin that contains the element with `above` larger ones, and how many elements of that bin
/// come before it.
struct Place {
  std::uint32_t bin = 0;
  std::uint64_t before = 0;
};
Place find(std::span<const std::uint32_t> histogram, std::uint64_t above) {
  auto bin = static_cast<std::uint32_t>(histogram.size());
  while (above >= histogram[--bin]) above -= histogram[bin];
  return {bin, above};
}

/// Finds the k largest magnitudes by two passes of a radix selection: first the upper 16 bits, then
/// the 15 below them.
numeric::ElementLimit select_by_histogram(std::span<const float> gradients,
                                          std::span<const float> residual, std::uint64_t k,
                                          std::vector<std::uint32_t>& histogram) {
  constexpr std::uint32_t kLowBits = 15;
  constexpr std::uint32_t kLowMask = (1U << kLowBits) - 1;
  histogram.assign(std::size_t{1} << 16, 0);
  for_magnitudes(gradients, residual, [&](std::span<const std::uint32_t> magnitudes) {
    for (const std::uint32_t bits : magnitudes) ++histogram[bits >> kLowBits];
  });
  const Place high = find(histogram, k - 1);
  histogram.assign(std::size_t{1} << kLowBits, 0);
  for_magnitudes(gradients, residual, [&](std::span<const std::uint32_t> magnitudes) {
    for (const std::uint32_t bits : magnitudes)
      if (bits >> kLowBits == high.bin) ++histogram[bits & kLowMask];
  });
  const Place low = find(histogram, high.before);
  return {(high.bin << kLowBits) | low.bin, low.before + 1};
}

numeric::ElementLimit select_by_partition(std::span<const float> gradients,
                                          std::span<const float> residual, std::uint64_t k,
                                          std::vector<std::uint32_t>& magnitudes) {
  magnitudes.clear();
  for_magnitudes(gradients, residual, [&](std::span<const std::uint32_t> some) {
    magnitudes.insert(magnitudes.end(), some.begin(), some.end());
  });
  const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  const auto above = std::count_if(magnitudes.begin(), last,
                                   [limit = *last](std::uint32_t bits) { return bits > limit; });
  return {*last, k - static_cast<std::uint64_t>(above)};
}

/// Selects the k largest, never a zero, and always what is not finite.
numeric::ElementLimit select(std::span<const float> gradients, std::span<const float> residual,
                             std::uint64_t k, std::vector<std::uint32_t>& scratch) {
  constexpr std::size_t kFewElements = 65536;  // with fewer, clearing a histogram costs more
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  if (k == 0) return {numeric::kInfinityBits, kAll};
  if (k >= gradients.size()) return {1, kAll};
  const auto limit = gradients.size() < kFewElements
                         ? select_by_partition(gradients, residual, k, scratch)
                         : select_by_histogram(gradients, residual, k, scratch);
  if (limit.bits == 0) return {1, kAll};
  if (limit.bits >= numeric::kInfinityBits) return {numeric::kInfinityBits, kAll};
  return limit;
}

/// Appends the selected elements of first .. first + count - 1.
void take(std::span<const float> gradients, std::span<float> residual, std::uint64_t first,
          std::uint64_t count, numeric::ElementLimit limit, SparseElements& out) {
  std::array<std::uint32_t, kChunk> keys;
  std::array<float, kChunk> values;
  for (std::uint64_t at = first; at < first + count; at += kChunk) {
    const std::size_t chunk = std::min<std::uint64_t>(kChunk, first + count - at);
    const std::size_t taken = numeric::take_elements(
        gradients.data() + at, residual.empty() ? nullptr : residual.data() + at, chunk,
        static_cast<std::uint32_t>(at), limit, keys.data(), values.data());
    out.keys.insert(out.keys.end(), keys.data(), keys.data() + taken);
    out.values.insert(out.values.end(), values.data(), values.data() + taken);
  }
}

void check_elements(const char* call, std::span<const float> gradients, std::span<float> residual) {
  check_residual(call, gradients, residual);
  if (gradients.size() > std::uint64_t{1} << 32)
    refuse(call, quantity("gradients", gradients.size(), std::uint64_t{1} << 32) + " at most");
}

}  // namespace

// -------------------------------------------------------------------- blocks

std::uint64_t share_of(double ratio, std::uint64_t n) {
  if (!(ratio >= 0 && ratio <= 1))
    refuse("share_of", "ratio is " + std::to_string(ratio) + "; 0 to 1 expected");
  return std::min(n, static_cast<std::uint64_t>(std::ceil(ratio * static_cast<double>(n))));
}

std::uint64_t compress_threshold(const BlockCompression& blocks, double norm) {
  const auto pass = checked("compress_threshold", blocks);
  if (!(norm >= 0))
    refuse("compress_threshold", "norm is " + std::to_string(norm) + "; 0 or more expected");
  std::fill(blocks.sent_blocks.begin(), blocks.sent_blocks.end(), ~std::uint64_t{0});
  if (const std::uint64_t last = pass.block_count() % 64; last != 0)
    blocks.sent_blocks.back() = (std::uint64_t{1} << last) - 1;
  return numeric::keep_blocks(pass, norm * norm, blocks.sent_blocks.data());
}

std::uint64_t compress_top_k(const BlockCompression& blocks, std::uint64_t k) {
  const auto pass = checked("compress_top_k", blocks);
  auto scores = energies_of(pass);
  std::transform(scores.begin(), scores.end(), scores.begin(), score_of);
  choose_largest(scores, k, blocks.sent_blocks);
  return numeric::keep_blocks(pass, 0, blocks.sent_blocks.data());
}

std::uint64_t compress_top_k_ratio(const BlockCompression& blocks,
                                   std::span<const float> parameters, std::uint64_t k) {
  constexpr const char* kCall = "compress_top_k_ratio";
  const auto pass = checked(kCall, blocks);
  if (parameters.size() != pass.count)
    refuse(kCall, quantity("parameters", parameters.size(), pass.count));
  if (overlap(parameters, blocks.residual) || overlap(parameters, blocks.out))
    refuse(kCall, "parameters overlap what is written");
  auto scores = energies_of(pass);
  const auto weights = energies_of({.gradients = parameters.data(),
                                    .residual = nullptr,
                                    .out = nullptr,
                                    .count = pass.count,
                                    .block_elements = pass.block_elements});
  for (std::size_t b = 0; b < scores.size(); ++b) scores[b] = ratio_score(scores[b], weights[b]);
  choose_largest(scores, k, blocks.sent_blocks);
  for (std::size_t b = 0; b < scores.size(); ++b)
    if (scores[b] == kInfinity) set_bit(blocks.sent_blocks, b);
  return numeric::keep_blocks(pass, 0, blocks.sent_blocks.data());
}

std::uint64_t compress_random_k(const BlockCompression& blocks, std::uint64_t k, std::uint64_t seed,
                                std::uint64_t step) {
  const auto pass = checked("compress_random_k", blocks);
  const std::uint64_t count = pass.block_count();
  std::fill(blocks.sent_blocks.begin(), blocks.sent_blocks.end(), 0);
  Random random(Random(seed).next() ^ step);
  std::uint64_t wanted = std::min(k, count);
  // Knuth's selection sampling (algorithm 3.4.2 S): each set of k is equally likely.
  for (std::uint64_t b = 0; b < count && wanted > 0; ++b)
    if (random.below(count - b) < wanted) {
      set_bit(blocks.sent_blocks, b);
      --wanted;
    }
  return numeric::keep_blocks(pass, 0, blocks.sent_blocks.data());
}

// -------------------------------------------------------------------- elements

void compress_elements(std::span<const float> gradients, std::span<float> residual, float magnitude,
                       SparseElements& out) {
  check_elements("compress_elements", gradients, residual);
  if (!(magnitude >= 0))
    refuse("compress_elements",
           "magnitude is " + std::to_string(magnitude) + "; 0 or more expected");
  out.keys.clear();
  out.values.clear();
  const auto bits = std::bit_cast<std::uint32_t>(magnitude) & numeric::kMagnitudeMask;
  take(gradients, residual, 0, gradients.size(), {.bits = std::max<std::uint32_t>(bits, 1)}, out);
}

ElementTopK::ElementTopK(const Options& options) : options_(options) {
  if (options.exact_every == 0) refuse("ElementTopK", "exact_every is 0; 1 or more expected");
}

void ElementTopK::set_k(std::uint64_t k) {
  if (k != options_.k) forget();
  options_.k = k;
}

float ElementTopK::threshold(std::size_t bucket) const {
  if (bucket >= limits_.size())
    refuse("ElementTopK", "there is no bucket " + std::to_string(bucket));
  return std::bit_cast<float>(limits_[bucket]);
}

void ElementTopK::compress(std::span<const float> gradients, std::span<float> residual,
                           SparseElements& out) {
  check_elements("ElementTopK", gradients, residual);
  const std::uint64_t count = gradients.size();
  const std::uint64_t size = options_.bucket_elements == 0
                                 ? std::max<std::uint64_t>(count, 1)
                                 : std::min(options_.bucket_elements, std::uint64_t{1} << 32);
  const bool is_exact = next_exact_ == 0 || count != elements_;
  if (is_exact) {
    limits_.resize(count / size + (count % size != 0 ? 1 : 0));
    elements_ = count;
    next_exact_ = options_.exact_every;
  }
  --next_exact_;
  out.keys.clear();
  out.values.clear();
  for (std::size_t bucket = 0; bucket < limits_.size(); ++bucket) {
    const std::uint64_t first = bucket * size;
    const std::uint64_t here = std::min(size, count - first);
    numeric::ElementLimit limit{.bits = limits_[bucket]};
    if (is_exact) {
      limit =
          select(gradients.subspan(first, here),
                 residual.empty() ? residual : residual.subspan(first, here), options_.k, scratch_);
      limits_[bucket] = limit.bits;
    }
    take(gradients, residual, first, here, limit, out);
  }
  if (!is_exact && out.keys.size() / 2 / std::max<std::size_t>(limits_.size(), 1) > options_.k)
    forget();
}

// -------------------------------------------------------------------- the union

UnionTarget::UnionTarget(const Options& options)
    : options_(options), independent_ranks_(options.ranks) {
  if (options.ranks == 0) refuse("UnionTarget", "ranks is 0; 1 or more expected");
  if (options.unit_bytes == 0) refuse("UnionTarget", "unit_bytes is 0; 1 or more expected");
}

std::uint64_t UnionTarget::k() const {
  const std::uint64_t wanted = options_.bytes / options_.unit_bytes;
  if (wanted >= options_.units) return options_.units;
  if (wanted == 0) return 0;
  const auto units = static_cast<double>(options_.units);
  const double in_union = static_cast<double>(wanted) / units;
  const double own = -std::expm1(std::log1p(-in_union) / independent_ranks_);
  return std::clamp(static_cast<std::uint64_t>(own * units), std::uint64_t{1}, wanted);
}

void UnionTarget::measured(std::uint64_t own, std::uint64_t in_union) {
  if (own > in_union || in_union > options_.units)
    refuse("UnionTarget", "a rank has " + std::to_string(own) + " units, the union " +
                              std::to_string(in_union) + " of " + std::to_string(options_.units));
  if (own == 0 || own == options_.units) return;  // one cannot see an overlap
  const auto units = static_cast<double>(options_.units);
  const double left = std::max(units - static_cast<double>(in_union), 0.5) / units;
  const double seen = std::log(left) / std::log1p(-static_cast<double>(own) / units);
  independent_ranks_ = std::max(seen, 1.0);
}

}  // namespace sluice
