// GlobalTopK: nothing is lost, all ranks have the same threshold, about k sums come, special values
// are defined, and a failed op does not change the residual.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <sluice/global_top_k.hpp>

#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kElements = 20'000;
constexpr unsigned kSteps = 50;

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E37'79B9'7F4A'7C15;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

/// A whole number, -most .. most.
float drawn(std::uint64_t seed, int most) {
  return static_cast<float>(static_cast<int>(mixed(seed) % static_cast<unsigned>(2 * most + 1)) -
                            most);
}

std::uint64_t seed_of(std::size_t i, unsigned rank, unsigned step) {
  return (std::uint64_t{step} * 257 + rank) * kElements + i;
}

/// Gradients of small whole numbers, so that sums of all steps and ranks are exact.
struct Distribution {
  const char* name;
  float (*element)(std::size_t i, unsigned rank, unsigned step);
};
constexpr std::array kDistributions{
    Distribution{"noise", [](std::size_t i, unsigned rank,
                             unsigned step) { return drawn(seed_of(i, rank, step), 50); }},
    Distribution{"a pattern, and noise on it",
                 [](std::size_t i, unsigned rank, unsigned step) {
                   return drawn(i, 20) + drawn(seed_of(i, rank, step), 20);
                 }},
    Distribution{"popular elements",
                 [](std::size_t i, unsigned rank, unsigned step) {
                   const auto most = static_cast<int>(2'000 / (1 + mixed(i) % 1'000));
                   return drawn(seed_of(i, rank, step), most);
                 }},
    Distribution{"ranks that cancel each other",
                 [](std::size_t i, unsigned rank, unsigned step) {
                   return (rank % 2 == 0 ? 1.0F : -1.0F) * drawn(i, 50) +
                          drawn(seed_of(i, rank, step), 5);
                 }},
    Distribution{"all equal", [](std::size_t, unsigned, unsigned) { return 3.0F; }},
    Distribution{"few elements, on one rank, that grow",
                 [](std::size_t i, unsigned rank, unsigned step) {
                   return rank == 0 && i % 500 == 0 ? static_cast<float>(step * step) : 0.0F;
                 }},
    Distribution{"a thousandth after half of the steps",
                 [](std::size_t i, unsigned rank, unsigned step) {
                   return drawn(seed_of(i, rank, step), step < kSteps / 2 ? 5'000 : 5);
                 }},
};

Floats gradients_of(const Distribution& distribution, unsigned rank, unsigned step) {
  Floats gradients(kElements);
  for (std::size_t i = 0; i < kElements; ++i) gradients[i] = distribution.element(i, rank, step);
  return gradients;
}

void add(Floats& to, const Floats& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

bool same_on_all(Communicator& job, const Floats& values) {
  Floats of_all(values.size() * job.world_size());
  job.all_gather(std::span<const float>(values), std::span(of_all)).wait();
  for (std::size_t i = 0; i < of_all.size(); ++i)
    if (of_all[i] != values[i % values.size()]) return false;
  return true;
}

/// The sum of what the ranks gave is what was delivered plus what they keep.
void nothing_is_lost(Communicator& job, const Distribution& distribution, std::uint64_t k,
                     std::uint32_t exact_every) {
  const std::string what =
      std::string(distribution.name) + ", exact every " + std::to_string(exact_every);
  GlobalTopK top_k({.k = k, .exact_every = exact_every});
  Floats given(kElements), delivered(kElements), residual(kElements), thresholds;
  for (unsigned step = 0; step < kSteps; ++step) {
    Floats tensor = gradients_of(distribution, job.rank(), step);
    add(given, tensor);
    const SparseWork work = top_k.all_reduce(job, tensor, residual, tensor);
    add(delivered, tensor);
    thresholds.push_back(top_k.threshold());
    std::size_t nonzero = 0;
    for (const std::uint64_t key : work.keys()) {
      nonzero += tensor[key] != 0 ? 1 : 0;
    }
    nonzero += static_cast<std::size_t>(std::ranges::count(tensor, 0.0F));
    check(nonzero == kElements, what + ": the output is zero elsewhere");
  }
  check(same_on_all(job, thresholds), what + ": all ranks have the same thresholds");
  job.all_reduce(std::span(given)).wait();
  job.all_reduce(std::span(residual)).wait();
  add(delivered, residual);
  check(given == delivered, what + ": nothing is lost");
}

Floats normal_like(unsigned rank, unsigned step) {
  Floats gradients(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    const std::uint64_t noise = seed_of(i, rank, step);
    const float bell = drawn(noise, 500) + drawn(mixed(noise + 1), 500) + drawn(~noise, 500);
    gradients[i] = (drawn(i, 500) + bell) / static_cast<float>(1 + i % 40);
  }
  return gradients;
}

void refused(const char* why, const std::function<void()>& call) {
  check_says(error_of(ErrorCode::kInvalidArgument, why, call), why);
}

}  // namespace

void global_top_k_loses_nothing(const Setting& setting) {
  Communicator job = setting.join(94);
  for (const Distribution& distribution : kDistributions)
    for (const std::uint32_t exact_every : {1U, 8U})
      nothing_is_lost(job, distribution, 400, exact_every);
}

void global_top_k_delivers_about_k(const Setting& setting) {
  Communicator job = setting.join(95);
  constexpr std::uint64_t k = kElements / 20;
  GlobalTopK top_k({.k = k});
  Floats residual(kElements);
  for (unsigned step = 0; step < kSteps; ++step) {
    const Floats gradients = normal_like(job.rank(), step);
    const std::size_t count = top_k.start(job, gradients, residual).valid()
                                  ? top_k.finish().keys().size()
                                  : std::size_t{0};
    check(top_k.sent() == k, "a rank sends k");
    if (step < kSteps / 2) continue;
    check(count >= k / 2 && count <= 2 * k, "step " + std::to_string(step) + " delivers " +
                                                std::to_string(count) +
                                                " for k = " + std::to_string(k));
  }
}

void global_top_k_of_special_input(const Setting& setting) {
  Communicator job = setting.join(96);
  const auto ranks = static_cast<float>(job.world_size());
  Floats tensor(100), residual(100), out(100, 7);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<float>(i + 1);

  GlobalTopK none({.k = 0});
  check(none.all_reduce(job, tensor, residual, out).keys().empty(), "k = 0 delivers nothing");
  check(residual == tensor && out == Floats(100), "k = 0 keeps all");

  GlobalTopK all({.k = 100, .reduction = Reduction::kAverage});
  for (int step = 0; step < 3; ++step) {
    residual = tensor;
    all.all_reduce(job, tensor, residual, out);
    check(all.threshold() == 0 && residual == Floats(100), "k = n keeps nothing");
    check(std::ranges::equal(out, tensor, {}, {}, [](float x) { return 2 * x; }),
          "the average of all");
  }

  // Equal elements: the first two on each rank; and all, where a rank re-uses its threshold.
  GlobalTopK two({.k = 2, .exact_every = 8});
  std::ranges::fill(tensor, 5.0F);
  std::ranges::fill(residual, 0.0F);
  const SparseWork first = two.all_reduce(job, tensor, residual, out);
  check(std::ranges::equal(first.keys(), std::array<std::uint64_t, 2>{0, 1}),
        "the first of equals");
  check(two.threshold() == 0, "no threshold for k sums in all");
  check(two.all_reduce(job, tensor, residual, out).keys().size() == 100, "all equals");
  check(two.threshold() == 10 * ranks, "the k-th largest is the threshold");

  // Nothing to send.
  check(two.all_reduce(job, Floats(100), residual, out).keys().empty(), "zeros are not sent");
  check(two.threshold() == 10 * ranks, "zeros leave the threshold");

  // Values that are not finite are delivered whatever the threshold is, and no part of them is
  // kept.
  Floats special(100, 0.001F);
  if (job.rank() == 0) special[3] = std::numeric_limits<float>::quiet_NaN();
  special[50] = kInfinity;
  const SparseWork odd = two.all_reduce(job, special, residual, out);
  check(std::ranges::equal(odd.keys(), std::array<std::uint64_t, 2>{3, 50}), "NaN and infinity");
  check(std::isnan(out[3]) && out[50] == kInfinity, "are delivered");
  check(std::ranges::all_of(residual, [](float x) { return std::isfinite(x); }), "and not kept");
  check(residual[50] == 0 && std::isfinite(two.threshold()), "nor is the threshold spoiled");

  // Without residual, and without elements.
  GlobalTopK one({.k = 1});
  tensor[9] = 100;
  check(one.all_reduce(job, tensor, {}, tensor).keys().size() == 1, "without residual");
  check(tensor[9] == 100 * ranks && tensor[8] == 0, "in place");
  check(one.all_reduce(job, {}, {}, {}).keys().empty(), "without elements");
}

void global_top_k_that_fails(const Setting& setting) {
  Communicator job = setting.join(97);
  const bool is_first = job.rank() == 0;
  Floats tensor(1'000, 2), residual(1'000, 1), out(1'000, 7);
  GlobalTopK::Options options{.k = 500};

  // On all ranks: everything is kept, and the next step delivers it.
  options.result_bytes = 12;
  GlobalTopK small(options);
  refused("more than the 12 bytes allowed", [&] { small.all_reduce(job, tensor, residual, out); });
  check(residual == Floats(1'000, 3), "a failed step keeps all");
  check(out == Floats(1'000, 7), "and writes nothing");
  check(small.threshold() == 0, "the threshold stays");

  // On one rank: the others have a threshold then, as the ranks together have more than k sums.
  // Only after forget() all have the same threshold again.
  for (std::size_t i = 0; i < tensor.size(); ++i)
    tensor[i] = i % job.world_size() == job.rank() ? 2.0F : 0.0F;
  std::ranges::fill(residual, 0.0F);
  options.k = 200;
  options.result_bytes = is_first ? 12 : 1 << 20;
  GlobalTopK other(options);
  if (is_first) {
    refused("more than the 12", [&] { other.all_reduce(job, tensor, residual, out); });
    check(residual == tensor, "the failed rank keeps all");
  } else {
    other.all_reduce(job, tensor, residual, out);
    check(residual != tensor && other.threshold() == 2, "the others go on");
  }
  other.forget();
  other.set_k(2);
  std::ranges::fill(residual, 0.0F);
  if (is_first)
    refused("more than the 12", [&] { other.all_reduce(job, tensor, residual, out); });
  else
    check(other.all_reduce(job, tensor, residual, out).keys().size() == 2U * job.world_size(),
          "after forget()");
  other.forget();

  // What does not fit is refused before anything is written.
  refused("residual has 999 elements, 1000 expected, or none",
          [&] { other.start(job, tensor, std::span(residual).first(999)); });
  refused("out has 999 elements, 1000 expected",
          [&] { other.all_reduce(job, tensor, residual, std::span(out).first(999)); });
  refused("residual and out overlap", [&] { other.all_reduce(job, tensor, residual, residual); });
  refused("no step is under way", [&] { other.finish(); });
  refused("reduction is max; sum or average expected",
          [&] { GlobalTopK({.k = 1, .reduction = Reduction::kMax}); });
  refused("exact_every is 0", [&] { GlobalTopK({.k = 1, .exact_every = 0}); });
  GlobalTopK next({.k = 1});
  next.start(job, tensor, residual);
  refused("a step is under way", [&] { next.start(job, tensor, residual); });
  refused("a step is under way", [&] { next.forget(); });
  refused("out has 999 elements", [&] { next.finish(std::span(out).first(999)); });
  next.finish(out);

  {
    GlobalTopK dropped({.k = 5});
    dropped.start(job, tensor, residual);
  }
  job.barrier().wait();

  // After the end of the job.
  job.leave();
  const Floats before = residual;
  try {
    next.all_reduce(job, tensor, residual, out);
    check(false, "the job was left");
  } catch (const Error&) {
  }
  bool kept = true;
  for (std::size_t i = 0; i < residual.size(); ++i) kept &= residual[i] == before[i] + tensor[i];
  check(kept, "an op that cannot begin keeps all");
}

void global_top_k_that_ranks_disagree_about(const Setting& setting) {
  Communicator signal = setting.join(2);
  Communicator job = setting.join(98);
  // Otherwise the end of the job may meet a rank that has not quite joined.
  signal.barrier().wait();
  GlobalTopK top_k({.k = 10, .tag = std::uint64_t{job.rank() == 0 ? 1U : 2U}});
  Floats tensor(100, 2), residual(100, 1), out(100);
  error_of(ErrorCode::kOpMismatch, "tags differ",
           [&] { top_k.all_reduce(job, tensor, residual, out); });
  check(residual == Floats(100, 3), "a step that ranks disagree about keeps all");
}

}  // namespace sluice::api_test
