// The one error of Sluice: what a caller can catch, with the rank and the op it concerns.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

enum class ErrorCode : std::uint16_t {
  kInvalidArgument = 1,  ///< a setting or argument out of its range; nothing was started
  kUnavailable = 2,      ///< a device, privilege, socket or memory is not to be had
  kAggregatorLost = 3,   ///< nothing was received from an aggregator within `aggregator_timeout`
  kWorkerLost = 4,       ///< a rank of the job died or was declared failed; `rank` names it
  kFormationFailed = 5,  ///< not all ranks came, or they disagree about the job
  kOpMismatch = 6,       ///< ranks called different collectives; the message names both values
  kRankLeft = 7,       ///< a rank left or aborted the job while others still work; `rank` names it
  kRankRestarted = 8,  ///< a rank joined again: its generation of the job has ended
  kQuota = 9,          ///< the aggregator refuses: a limit on jobs, ports or memory is reached
  kAborted = 10,       ///< this process, or an aggregator's operator, ended the job
  kProtocol = 11,      ///< a peer broke the protocol's rules: a defect, please report it
  kTimeout = 12,       ///< the caller's own bound of a wait passed; the op goes on
  kNotAuthenticated = 13,  ///< the job has a secret, and this rank has another one or none
  kOpTimedOut = 14,  ///< an op was not done within its time-out, which ended the job; `rank` is one
                     ///< that it waited for, if that is known
};

/// "invalid argument", "aggregator lost", ...
std::string_view name(ErrorCode code);

/// Thrown by the public API and carried by a failed Work. `what()` is one line for a person.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::optional<std::uint16_t> rank = {},
        std::optional<std::uint64_t> op = {},
        std::optional<std::chrono::milliseconds> last_heard = {})
      : std::runtime_error(message), code_(code), rank_(rank), op_(op), last_heard_(last_heard) {}

  /// The same error as it hits this op; it stays with the op that it names already.
  Error of_op(std::uint64_t op) const {
    return Error(code_, what(), rank_, op_ ? op_ : op, last_heard_);
  }

  ErrorCode code() const { return code_; }
  std::optional<std::uint16_t> rank() const { return rank_; }  ///< the rank at fault, if one is
  std::optional<std::uint64_t> op() const { return op_; }      ///< the op it hit, in call order
  /// Of a lost worker: how long it had not been heard when it was declared failed.
  std::optional<std::chrono::milliseconds> last_heard() const { return last_heard_; }

 private:
  ErrorCode code_;
  std::optional<std::uint16_t> rank_;
  std::optional<std::uint64_t> op_;
  std::optional<std::chrono::milliseconds> last_heard_;
};

}  // namespace sluice
