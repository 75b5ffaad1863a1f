#include "worker/engine/join_attempt.hpp"

#include <algorithm>

#include "common/base/version.hpp"

namespace sluice::worker {

void JoinAttempt::hello_sent(Time now, Duration longest_retry) {
  due_ = after(now, retry_);
  retry_ = std::min(2 * retry_, longest_retry);
}

bool JoinAttempt::on_pending(const wire::Pending& packet) {
  if (packet.nonce != ask_.nonce || packet.serial <= serial_) return false;
  serial_ = packet.serial;
  is_answered_ = true;
  absent_ = RankSet::from_bytes(packet.absent);
  return true;
}

bool JoinAttempt::on_versions(const wire::Versions& packet) {
  const bool other_than_ours = packet.lowest > wire::kVersion || packet.highest < wire::kVersion;
  if (packet.nonce != ask_.nonce || packet.lowest > packet.highest || !other_than_ours)
    return false;
  ++versions_received_;
  lowest_version_ = packet.lowest;
  highest_version_ = packet.highest;
  return true;
}

std::string JoinAttempt::version_text() const {
  const std::string theirs = lowest_version_ == highest_version_
                                 ? "version " + std::to_string(highest_version_)
                                 : "versions " + std::to_string(lowest_version_) + " to " +
                                       std::to_string(highest_version_);
  return " speaks " + theirs + " of the protocol, this library version " +
         std::to_string(wire::kVersion) + " (build " + build_id() +
         "): use the same release on both";
}

std::string JoinAttempt::unproven_text() const {
  if (versions_received_ != 0)
    return "; something there says, without proof, that it" + version_text();
  if (not_shared_ == 0) return "";
  return "; something there says, without proof, that this rank does not show the job's secret";
}

}  // namespace sluice::worker
