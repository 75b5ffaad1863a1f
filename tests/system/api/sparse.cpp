// Sparse sums: pairs of key and row, their union, thresholds, and what is refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {
namespace {

struct Pairs {
  std::vector<std::uint64_t> keys;
  std::vector<float> rows;

  SparseTensor tensor(std::uint64_t row) const {
    return {
        .keys = keys, .values = rows.data(), .type = ElementType::kFloat32, .row_elements = row};
  }
};

/// Every rank has its own keys, and some keys that several ranks have.
Pairs pairs_of(unsigned rank, std::uint64_t count, std::uint64_t step, std::uint64_t row) {
  Pairs pairs;
  for (std::uint64_t i = 0; i < count; ++i) {
    if ((i * 7 + rank) % 3 == 0) continue;
    pairs.keys.push_back(i * step);
    for (std::uint64_t e = 0; e < row; ++e)
      pairs.rows.push_back(static_cast<float>((i + e) % 100) + static_cast<float>(rank));
  }
  return pairs;
}

/// Sums of small whole numbers, which are exact.
std::map<std::uint64_t, std::vector<float>> sums_of(unsigned ranks, std::uint64_t count,
                                                    std::uint64_t step, std::uint64_t row) {
  std::map<std::uint64_t, std::vector<float>> sums;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    const Pairs pairs = pairs_of(rank, count, step, row);
    for (std::size_t i = 0; i < pairs.keys.size(); ++i) {
      auto& sum = sums[pairs.keys[i]];
      sum.resize(row);
      for (std::uint64_t e = 0; e < row; ++e) sum[e] += pairs.rows[i * row + e];
    }
  }
  return sums;
}

/// The sums as pairs and as a tensor, in the caller's memory.
void copies_are_the_same(const SparseWork& work, std::uint64_t key_bound, std::uint64_t row,
                         const std::string& what) {
  std::vector<std::uint64_t> keys(work.size());
  std::vector<float> values(work.size() * row);
  work.copy_to(keys.data(), values.data(), ElementType::kFloat32);
  check(std::ranges::equal(keys, work.keys()), what + ": the copy's keys");
  check(std::ranges::equal(values, work.values<float>()), what + ": the copy's rows");

  constexpr std::uint64_t kMostElements = 10'000'000;
  if (key_bound > kMostElements / row) return;
  std::vector<float> tensor(key_bound * row, -1);
  work.copy_to_dense(tensor.data(), tensor.size(), ElementType::kFloat32);
  std::vector<float> expected(key_bound * row);
  for (std::size_t i = 0; i < keys.size(); ++i)
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i * row), row,
                expected.begin() + static_cast<std::ptrdiff_t>(keys[i] * row));
  check(tensor == expected, what + ": as a tensor");
}

void sums_are_right(Communicator& job, std::uint64_t count, std::uint64_t step, std::uint64_t row,
                    double threshold = 0) {
  const std::string what = std::to_string(count) + " keys, " + std::to_string(step) +
                           " apart, rows of " + std::to_string(row) + ", threshold " +
                           std::to_string(threshold);
  const Pairs pairs = pairs_of(job.rank(), count, step, row);
  SparseOptions options;
  options.threshold = threshold;
  const SparseWork work = job.all_reduce(pairs.tensor(row), count * step + 1, options);
  work.wait();
  const auto keys = work.keys();
  const auto values = work.values<float>();
  check(values.size() == keys.size() * row, what + ": a row per key");
  std::size_t found = 0;
  std::uint64_t rejected = 0;
  for (const auto& [key, sum] : sums_of(job.world_size(), count, step, row)) {
    float most = 0;
    for (const float value : sum) most = std::max(most, std::fabs(value));
    if (most < threshold) {
      ++rejected;
      continue;
    }
    const bool there = found < keys.size() && keys[found] == key;
    check(there && std::equal(sum.begin(), sum.end(), values.begin() + found * row),
          what + ": the sum of key " + std::to_string(key));
    if (!there) return;
    ++found;
  }
  check(found == keys.size(), what + ": no other keys");
  copies_are_the_same(work, count * step + 1, row, what);
  std::uint64_t counted = 0;
  for (const std::uint64_t n : work.rejected()) counted += n;
  check(counted == rejected, what + ": what was rejected is counted");
}

}  // namespace

void sparse_sums(const Setting& setting) {
  Communicator job = setting.join(90);
  sums_are_right(job, 0, 1, 1);
  sums_are_right(job, 1, 1, 1);
  sums_are_right(job, 20'000, 1, 1);
  sums_are_right(job, 20'000, 1'000'000'007, 1);
  sums_are_right(job, 3'000, 17, 64);
  sums_are_right(job, 200, 17, 5'000);  // more than fit into a packet
  sums_are_right(job, 20, 17, 100'000);
  sums_are_right(job, 20'000, 3, 1, 150);
  sums_are_right(job, 1'000, 3, 5, std::numeric_limits<double>::infinity());
}

namespace {

float random_value(std::uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31F;
}

/// A rank's keys, and rows with its own magnitude.
Pairs random_pairs(unsigned rank, std::uint64_t count, std::uint64_t step, std::uint64_t row) {
  Pairs pairs = pairs_of(rank, count, step, row);
  std::uint64_t state = rank;
  for (float& value : pairs.rows) value = random_value(state) * static_cast<float>(rank + 1);
  return pairs;
}

/// The error is within the header's bound, if a scale is used only for rows of about one magnitude.
void encoded_sums_are_near(Communicator& job, Encoding encoding, std::uint64_t seed,
                           std::uint64_t row) {
  constexpr std::uint64_t kStep = 5;
  const std::uint64_t count = std::min<std::uint64_t>(3'000, 1'000'000 / row);
  const std::string what = std::string(name(encoding)) + " pairs, rows of " + std::to_string(row);
  const Pairs pairs = random_pairs(job.rank(), count, kStep, row);
  SparseOptions options;
  options.encoding = encoding;
  options.rounding_seed = seed;
  const SparseWork work = job.all_reduce(pairs.tensor(row), count * kStep + 1, options);
  work.wait();
  std::map<std::uint64_t, std::vector<double>> sums;
  double sizes = 0;
  for (unsigned rank = 0; rank < job.world_size(); ++rank) {
    const Pairs theirs = random_pairs(rank, count, kStep, row);
    sizes += rank + 1;
    for (std::size_t i = 0; i < theirs.keys.size(); ++i) {
      auto& sum = sums[theirs.keys[i]];
      sum.resize(row);
      for (std::uint64_t e = 0; e < row; ++e) sum[e] += double{theirs.rows[i * row + e]};
    }
  }
  const double units = encoding == Encoding::kInt8      ? 127
                       : encoding == Encoding::kInt4    ? 7
                       : encoding == Encoding::kFloat16 ? 0x1p11
                                                        : 0x1p8;
  const double bound = 2 * sizes / units * (seed != 0 ? 2 : 1) + 1e-4;
  const auto keys = work.keys();
  const auto values = work.values<float>();
  check(keys.size() == sums.size(), what + ": all keys");
  double most = 0;
  std::size_t at = 0;
  for (const auto& [key, sum] : sums) {
    check(keys[at] == key, what + ": keys in order");
    for (std::uint64_t e = 0; e < row; ++e)
      most = std::max(most, std::fabs(double{values[at * row + e]} - sum[e]));
    ++at;
  }
  check(most <= bound, what + ": off by " + std::to_string(most) + ", not within its bound " +
                           std::to_string(bound));
  check(most > bound / 1000, what + ": nothing was rounded");
  copies_are_the_same(work, count * kStep + 1, row, what);
}

}  // namespace

void encoded_sparse_sums(const Setting& setting) {
  Communicator job = setting.join(99);
  for (const std::uint64_t row : {1, 3, 64, 5'000})
    for (const Encoding encoding :
         {Encoding::kFloat16, Encoding::kBFloat16, Encoding::kInt8, Encoding::kInt4}) {
      encoded_sums_are_near(job, encoding, 0, row);
      if (is_scaled(encoding)) encoded_sums_are_near(job, encoding, 11, row);
    }
  // A chunk with a NaN becomes NaN completely; others do not.
  const std::vector<std::uint64_t> keys{0, 1, 100'000};
  const std::vector<float> rows{std::numeric_limits<float>::quiet_NaN(), 1, 1};
  SparseOptions options;
  options.encoding = Encoding::kInt8;
  const SparseWork work = job.all_reduce({.keys = keys, .values = rows.data()}, 1'000'000, options);
  work.wait();
  const auto sums = work.values<float>();
  check(std::isnan(sums[0]) && std::isnan(sums[1]), "a chunk with NaN");
  check(sums[2] == static_cast<float>(job.world_size()), "a chunk without");
}

void sparse_sums_of_any_order(const Setting& setting) {
  Communicator job = setting.join(91);
  const std::vector<std::uint64_t> keys{9, 4, 9, 1, 4, 9};
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  SparseOptions options;
  options.combine = true;
  const SparseTensor tensor{.keys = keys, .values = values.data()};
  const SparseWork work = job.all_reduce(tensor, 10, options);
  work.wait();
  const auto n = static_cast<float>(job.world_size());
  check(std::ranges::equal(work.keys(), std::vector<std::uint64_t>{1, 4, 9}), "keys in order");
  check(std::ranges::equal(work.values<float>(), std::vector<float>{4 * n, 7 * n, 10 * n}),
        "equal keys are one");
}

void sparse_sums_beside_dense_ones(const Setting& setting) {
  Communicator job = setting.join(92);
  const Pairs pairs = pairs_of(job.rank(), 5'000, 11, 1);
  std::vector<SparseWork> sparse;
  std::vector<std::vector<float>> tensors(4, std::vector<float>(10'000, 1));
  std::vector<Work> dense;
  for (auto& tensor : tensors) {
    sparse.push_back(job.all_reduce(pairs.tensor(1), 60'000));
    dense.push_back(job.all_reduce(std::span(tensor)));
  }
  for (const Work& work : dense) work.wait();
  for (const SparseWork& work : sparse) work.wait();
  for (const auto& tensor : tensors)
    check(std::all_of(tensor.begin(), tensor.end(),
                      [&](float x) { return x == static_cast<float>(job.world_size()); }),
          "dense sums between sparse ones");
  for (const SparseWork& work : sparse)
    check(std::ranges::equal(work.values<float>(), sparse[0].values<float>()),
          "the same sums every time");
}

void sparse_sums_refused(const Setting& setting) {
  Communicator job = setting.join(93);
  const std::vector<std::uint64_t> keys{3, 2};
  const std::vector<float> values{1, 2};
  const SparseTensor unsorted{.keys = keys, .values = values.data()};
  const auto refused = [](const char* why, const std::function<void()>& call) {
    check_says(error_of(ErrorCode::kInvalidArgument, why, call), why);
  };
  refused("keys must rise", [&] { job.all_reduce(unsorted, 10); });
  SparseOptions combine;
  combine.combine = true;
  refused("the last key is 3; less than key_bound 3 expected",
          [&] { job.all_reduce(unsorted, 3, combine); });
  const SparseTensor null{.keys = keys};
  refused("the values are null", [&] { job.all_reduce(null, 10, combine); });
  SparseOptions negative;
  negative.threshold = -2;
  refused("the threshold is -2", [&] { job.all_reduce({}, 10, negative); });

  SparseTensor long_row;
  long_row.row_elements = (std::uint64_t{1} << 61) - 1;  // a prime; the number of bytes overflows
  long_row.type = ElementType::kInt64;
  refused("row_elements is 2305843009213693951; 1..2^40 expected",
          [&] { job.all_reduce(long_row, 10); });
  long_row.row_elements = (std::uint64_t{1} << 31) - 1;  // a prime: a part has one element
  job.all_reduce(long_row, 10).wait();

  // A result above its bound fails on the ranks with that bound, and the job continues.
  const Pairs pairs = pairs_of(job.rank(), 1'000, 1, 1);
  SparseOptions bounded;
  bounded.result_bytes = job.rank() == 0 ? 600 : 1 << 20;
  const SparseWork work = job.all_reduce(pairs.tensor(1), 1'000, bounded);
  if (job.rank() == 0) {
    refused("more than the 600 bytes allowed", [&] { work.wait(); });
    refused("more than the 600 bytes allowed", [&] { work.keys(); });
  } else {
    work.wait();
    check(work.size() == sums_of(job.world_size(), 1'000, 1, 1).size(), "others get all sums");
  }
  job.barrier().wait();
}

}  // namespace sluice::api_test
