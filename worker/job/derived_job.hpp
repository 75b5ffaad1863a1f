// Ids of the jobs that ranks of a job make among themselves: channels, and the parts of a
// communicator that is split. Each rank computes them, so nobody has to be asked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// `nonce`: a random number that all of these ranks have, used for nothing else that derives ids;
/// `which` tells apart the jobs that are derived with it, whose ids never meet. Ids of different
/// nonces may, as rarely as random ones.
constexpr std::uint32_t derived_job(std::uint32_t parent, std::uint64_t nonce,
                                    std::uint32_t which) {
  std::uint64_t hash = nonce ^ parent * 0x9E37'79B9'7F4A'7C15u;  // mixed as SplitMix64 does
  hash = (hash ^ hash >> 30) * 0xBF58'476D'1CE4'E5B9u;
  hash = (hash ^ hash >> 27) * 0x94D0'49BB'1331'11EBu;
  return static_cast<std::uint32_t>(hash >> 32) ^ which;
}

/// What the aggregators need for a derived job that has a secret, as a person is told.
inline std::string secret_advice(std::string_view jobs) {
  std::string advice(jobs);
  advice +=
      " with ids of their own, for which the aggregators need the secret, too: as that of all jobs "
      "without one ('* SECRET')";
  return advice;
}

}  // namespace sluice
