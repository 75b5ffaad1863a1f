#include "aggregator/engine/retirement.hpp"

namespace sluice::aggregator {
namespace {

/// Whether no rank has left. If one has, the others are about to leave, too. They need the last
/// results from this aggregator, and so they are not sent away.
bool is_whole(const Members& members) {
  return members.present().size() == members.session().ranks;
}

}  // namespace

RankSet Retirement::still_here(const Members& members) const {
  RankSet here = members.present();
  if (begun()) here -= *sent_away_;
  return here;
}

/// A POLL for no stream asks for a KEEPALIVE.
void Retirement::ask_who_stays(const JobMembership& membership, ControlPackets& out) const {
  const Members& members = membership.members();
  if (!membership.active() || !is_whole(members)) return;
  const Session& session = members.session();
  auto poll = wire::make<wire::Poll>(session.job);
  poll.delivery.epoch = session.epoch;
  poll.delivery.delivery_token = session.delivery_token;
  poll.delivery.stream = session.shard;
  still_here(members).for_each([&](Rank r) {
    out.push(members.endpoints()[r.value], poll, membership.record().protection);
  });
}

bool Retirement::send_away(const Endpoint& from, const Packet& keep_alive,
                           JobMembership& membership, ControlPackets& out) {
  const JobRecord& record = membership.record();
  if (!is_whole(membership.members())) return false;
  out.push(from, *refusal_of(from, keep_alive, record.config), record.protection);
  const Rank rank{keep_alive.member().rank};
  if (sent_away_->contains(rank) ||
      !membership.said_something_new(rank, keep_alive.as<wire::KeepAlive>()))
    return false;
  sent_away_->insert(rank);
  return still_here(membership.members()).empty();
}

}  // namespace sluice::aggregator
