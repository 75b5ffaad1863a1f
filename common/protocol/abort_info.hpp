// Why a job ended, as a value, which an ABORT packet carries; and as a text for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

struct AbortInfo {
  wire::AbortReason reason = wire::AbortReason::kGenerationOver;
  wire::Field field = wire::Field::kNone;
  Rank rank_a{};
  Rank rank_b{};
  std::uint64_t value_a = 0;
  std::uint64_t value_b = 0;
  OpNumber op = 0;

  bool operator==(const AbortInfo&) const = default;
};

/// Which side has no secret for the job, if a join does not prove it; in `value_a`.
enum class LackOfSecret : std::uint64_t {
  kNeither = 0,  ///< they have different secrets, or it is not known
  kAggregator = 1,
  kRank = 2,
};

/// Why a rank left the job or ended it; in `value_a`.
enum class Departure : std::uint64_t {
  kByChoice = 0,
  kByException = 1,  ///< an exception ended its program, or the part of it that used the job
};
inline constexpr auto kLastDeparture = static_cast<std::uint64_t>(Departure::kByException);

/// What a LEAVE of `rank` carries: it leaves (kRankLeft) or ends the job (kRankAborted). Nothing
/// for a departure by choice, which is the default of LEAVE.
std::optional<AbortInfo> cause_of(wire::AbortReason reason, Rank rank, Departure departure);

/// The ABORT packet that carries `info`. It refers to a generation of the job (0: none), or to the
/// join with this nonce (0: none).
wire::Abort to_packet(const AbortInfo& info, std::uint32_t job, std::uint64_t generation,
                      std::uint64_t nonce);
AbortInfo to_info(const wire::Abort& packet);

/// Writes and reads the cause in a LEAVE that ends the job for all. Call the second one only if it
/// has a reason.
void set_cause(wire::Leave& packet, const AbortInfo& info);
AbortInfo to_info(const wire::Leave& packet);

/// One line for a person: "rank 3 called all_reduce of 1000 elements, rank 0 of 900 (op 17)".
std::string explain(const AbortInfo& info);

ErrorCode error_code(const AbortInfo& info);

/// The error with which a worker's pending ops fail. `job` is its id, or the name that its users
/// know.
Error to_error(const AbortInfo& info, std::string_view job);
inline Error to_error(const AbortInfo& info, std::uint32_t job) {
  return to_error(info, std::to_string(job));
}

}  // namespace sluice
