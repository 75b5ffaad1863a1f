#include "examples/section_trainer/verdict.hpp"

#include <cstdio>
#include <ostream>

#include <sodium.h>

#include "examples/section_trainer/train_alone.hpp"

namespace section_trainer {
namespace {

using Digest = std::array<std::int64_t, 4>;

Digest digest(const Table& weights) {
  Digest digest{};
  const auto bytes = std::as_bytes(weights.tensor());
  crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), sizeof digest,
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr,
                     0);
  return digest;
}

Digest reduced(sluice::Communicator& job, Digest digest, sluice::Reduction reduction) {
  sluice::ReduceOptions options;
  options.reduction = reduction;
  job.all_reduce(std::span<std::int64_t>(digest), options).wait();
  return digest;
}

std::string hex(std::int64_t word) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(word));
  return text.data();
}

const char* answer(bool right) {
  return right ? "yes" : "NO";
}

}  // namespace

bool all_agree(sluice::Communicator& job, bool mine) {
  std::array<std::int32_t, 1> objections{mine ? 0 : 1};
  job.all_reduce(std::span<std::int32_t>(objections)).wait();
  return objections[0] == 0;
}

bool weights_equal_on_all_ranks(sluice::Communicator& job, const Table& weights,
                                std::ostream& out) {
  const Digest own = digest(weights);
  const Digest least = reduced(job, own, sluice::Reduction::kMin);
  const Digest greatest = reduced(job, own, sluice::Reduction::kMax);
  const bool equal = least == own && greatest == own;
  const bool verdict = all_agree(job, equal);
  out << "all " << job.world_size() << " ranks hold bit-identical weights: " << answer(verdict)
      << " (BLAKE2b " << hex(own[0]) << "... on rank " << job.rank() << ")" << std::endl;
  return verdict;
}

bool weights_match_single_process(sluice::Communicator& job, const Table& weights,
                                  const Dataset& data, const Plan& plan, std::ostream& out) {
  bool match = true;
  if (job.rank() == 0) {
    const double repeated = largest_difference(weights, train_alone(data, plan, job.world_size()));
    out << "equal bit for bit to one process that adds in rank order: " << answer(repeated == 0)
        << " (largest difference " << repeated << ")" << std::endl;
    const double whole = largest_difference(weights, train_alone(data, plan, 1));
    out << "equal to one process that takes whole batches: " << answer(whole <= kTolerance)
        << " (largest difference " << whole << ", tolerance " << kTolerance << ", largest weight "
        << largest_weight(weights) << ")" << std::endl;
    match = repeated == 0 && whole <= kTolerance;
  }
  return all_agree(job, match);
}

}  // namespace section_trainer
