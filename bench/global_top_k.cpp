// Measures what GlobalTopK sends and receives, as one process per rank:
//
//   bench-global-top-k ELEMENTS K STEPS SEED [EXACT_EVERY]
//
// Gradients differ from step to step: a fixed pattern for each element, plus noise of twice the
// strength for each rank and step; both are multiplied by the element's scale. Some elements are
// popular: a share of 1 / s^2 of them has a scale above s, the same ones on all ranks.
//
// Rank 0 prints a line of JSON per step, and at the end the mean of all steps except the first,
// which delivers the whole union. The figures are words of 4 bytes per k of the rank with the most,
// by direction, from the statistics of the ops. `time_us` is that of the slowest rank, with
// selection and residual.
//
// Ranks that share cores end their selections at different times. A rank that waits for the others
// sends again, which counts. SLUICE_RETRANSMIT_TIMEOUT_MIN_US=1000000 avoids that.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <sluice/global_top_k.hpp>
#include <sluice/sluice.hpp>

#include "bench/largest.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::uint32_t elements, k, steps, seed, exact_every;
};

std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

/// Nearly normal, with deviation 1: the sum of four bytes.
float normal(std::uint32_t x) {
  const std::uint32_t sum = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
  return (static_cast<float>(sum) - 510) / 147.8F;
}

class Gradients {
 public:
  Gradients(const Flags& flags, std::uint32_t rank)
      : seed_(mixed(flags.seed)), rank_(rank), elements_(flags.elements) {
    for (std::size_t zeros = 0; zeros < scales_.size(); ++zeros)
      scales_[zeros] = std::exp2(static_cast<float>(zeros) / 2);
  }

  const std::vector<float>& of(std::uint32_t step) {
    const std::uint32_t noise = mixed(mixed(seed_ + rank_ + 1) + step);
    for (std::uint32_t i = 0; i < elements_.size(); ++i) {
      const std::uint32_t element = mixed(i ^ seed_);
      const float scale = scales_[static_cast<std::size_t>(std::countl_zero(element))];
      elements_[i] = scale * (normal(mixed(element)) / 2 + normal(mixed(i + noise)));
    }
    return elements_;
  }

 private:
  std::uint32_t seed_, rank_;
  std::array<float, 33> scales_{};
  std::vector<float> elements_;
};

void run(const Flags& flags, sluice::Communicator& job) {
  sluice::GlobalTopK top_k({.k = flags.k, .exact_every = flags.exact_every});
  Gradients gradients(flags, job.rank());
  std::vector<float> residual(flags.elements);
  const double k_words = 4.0 * flags.k;
  std::array<double, 3> means{};
  for (std::uint32_t step = 0; step < flags.steps; ++step) {
    const auto& gradient = gradients.of(step);
    job.barrier().wait();
    const float threshold = top_k.threshold();
    const auto start = Clock::now();
    top_k.start(job, gradient, residual);
    const sluice::SparseWork work = top_k.finish();
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    const auto statistics = work.statistics();
    const auto most = sluice::bench::largest(
        job, {time.count(), static_cast<double>(statistics.bytes_sent),
              static_cast<double>(statistics.bytes_received), static_cast<double>(top_k.sent()),
              static_cast<double>(statistics.retransmissions)});
    const auto delivered = static_cast<double>(work.keys().size());
    const std::array words{most[1] / k_words, most[2] / k_words, delivered / flags.k};
    for (std::size_t i = 0; step > 0 && i < words.size(); ++i)
      means[i] += words[i] / (flags.steps - 1);
    if (job.rank() != 0) continue;
    std::printf(
        "{\"ranks\": %u, \"step\": %u, \"time_us\": %.0f, \"threshold\": %g, \"sent\": %.0f, "
        "\"delivered\": %.0f, \"words_sent_per_k\": %.3f, \"words_received_per_k\": %.3f, "
        "\"retransmissions\": %.0f}\n",
        job.world_size(), step, most[0], static_cast<double>(threshold), most[3], delivered,
        words[0], words[1], most[4]);
    std::fflush(stdout);
  }
  if (job.rank() == 0)
    std::printf(
        "{\"ranks\": %u, \"steps\": %u, \"words_sent_per_k\": %.3f, "
        "\"words_received_per_k\": %.3f, \"delivered_per_k\": %.3f}\n",
        job.world_size(), flags.steps - 1, means[0], means[1], means[2]);
}

Flags parse(const std::vector<std::string>& words) {
  if (words.size() < 4 || words.size() > 5)
    throw std::invalid_argument("expected ELEMENTS K STEPS SEED [EXACT_EVERY]");
  const auto number = [&](std::size_t i, const char* name, unsigned long least) {
    std::size_t read = 0;
    unsigned long value = 0;
    try {
      value = std::stoul(words[i], &read);
    } catch (const std::exception&) {
    }
    if (read == 0 || read != words[i].size() || value < least || value > 0xFFFF'FFFFU)
      throw std::invalid_argument(std::string(name) + " is '" + words[i] + "'; a number from " +
                                  std::to_string(least) + " to 4294967295 expected");
    return static_cast<std::uint32_t>(value);
  };
  return {.elements = number(0, "ELEMENTS", 1),
          .k = number(1, "K", 1),
          .steps = number(2, "STEPS", 2),
          .seed = number(3, "SEED", 0),
          .exact_every = words.size() == 5 ? number(4, "EXACT_EVERY", 1) : 1};
}

}  // namespace

int main(int count, char** words) {
  try {
    const Flags flags = parse({words + 1, words + count});
    sluice::Context context(sluice::ContextOptions::from_environment());
    sluice::Communicator job(context, sluice::JobOptions::from_environment());
    run(flags, job);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-global-top-k: %s\n", error.what());
    return 1;
  }
}
