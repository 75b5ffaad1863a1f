// Ids of the jobs that ranks of a job derive from it: channels, and the parts of a communicator
// that is split. Each rank computes them, so no message is needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// `nonce` is a random number that these ranks share and use for nothing else that derives ids.
/// `which` distinguishes the jobs that are derived with the same nonce; their ids never collide.
/// Ids of different nonces may collide, as rarely as random numbers.
constexpr std::uint32_t derived_job(std::uint32_t parent, std::uint64_t nonce,
                                    std::uint32_t which) {
  std::uint64_t hash = nonce ^ parent * 0x9E37'79B9'7F4A'7C15u;  // mixed as in SplitMix64
  hash = (hash ^ hash >> 30) * 0xBF58'476D'1CE4'E5B9u;
  hash = (hash ^ hash >> 27) * 0x94D0'49BB'1331'11EBu;
  return static_cast<std::uint32_t>(hash >> 32) ^ which;
}

/// The advice for a person: what the aggregators need if the derived job has a secret.
inline std::string secret_advice(std::string_view jobs) {
  std::string advice(jobs);
  advice +=
      " with ids of their own, for which the aggregators need the secret, too: as that of all jobs "
      "without one ('* SECRET')";
  return advice;
}

}  // namespace sluice
