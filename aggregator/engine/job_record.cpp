#include "aggregator/engine/job_record.hpp"

#include <chrono>

#include "common/protocol/packet.hpp"

namespace sluice::aggregator {

void JobRecord::send_pending(const Endpoint& to, const wire::Join& join, const RankSet& absent,
                             ControlPackets& out) const {
  auto packet = wire::make<wire::Pending>(job);
  packet.nonce = join.nonce;
  packet.serial = join.serial;
  packet.absent = absent.to_bytes();
  out.push(to, packet, protection);
}

void JobRecord::refuse(const Endpoint& to, const wire::Join& join, const AbortInfo& info,
                       ControlPackets& out) {
  JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = info};
  event.session.job = job;
  report(event);
  out.push(to, to_packet(info, job, join.generation, join.nonce), protection);
}

bool JobRecord::answered_again(const Endpoint& from, const wire::Join& join, ControlPackets& out) {
  const AbortInfo* const why = tombstones.why_over(join);
  if (why == nullptr) return false;
  refuse(from, join, *why, out);
  return true;
}

AbortInfo about(wire::AbortReason reason, Rank rank, std::uint64_t value) {
  AbortInfo info;
  info.reason = reason;
  info.rank_a = rank;
  info.value_a = value;
  return info;
}

AbortInfo about(wire::AbortReason reason, Rank rank, Duration silence) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
  return about(reason, rank, static_cast<std::uint64_t>(ms));
}

bool has_progress(const wire::Join& join) {
  return join.generation != 0 && (join.flags & wire::kJoinNoProgress) == 0;
}

}  // namespace sluice::aggregator
