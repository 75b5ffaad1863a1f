#include "aggregator/engine/engine.hpp"

namespace sluice::aggregator {

void Engine::receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink) {
  Counters& counters = context_.counters;
  ++counters.packets_received;
  sink.enter(Stage::kValidate);
  Packet packet;
  DropReason drop = Packet::parse(buffer.bytes(), packet);
  if (drop == DropReason::kBadVersion) admission_.send_versions(from, buffer.bytes(), now);
  if (drop == DropReason::kNone && context_.config.integrity && from.off_machine &&
      !shows_damage(packet))
    drop = DropReason::kNoIntegrity;
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters.drops.count(drop);
  if (!context_.control.empty()) flush(sink);
  sink.enter(Stage::kReceive);  // the loop continues with the next packet
}

DropReason Engine::dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                            PacketSink& sink) {
  using wire::Kind;
  if (!wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  if (packet.kind() == Kind::kHello || packet.kind() == Kind::kJoin)
    return on_joiner(from, packet, now);

  Job* const job = jobs_.find(packet.job());
  const auto rank = job == nullptr ? std::nullopt : job->membership().find(packet.member());
  if (!rank) return admission_.on_unknown(job, from, packet, now);
  Opener* const opener = job->membership().members().opener_of(packet.member());
  if (const DropReason bad = unseal(opener, packet, buffer); bad != DropReason::kNone) return bad;
  const DropReason drop = job->on_packet(*rank, from, packet, std::move(buffer), now, sink);
  if (!admission_.stopped()) deadline_ = std::min(deadline_, job->beacon_due());
  return drop;
}

/// Handles a HELLO or a JOIN.
DropReason Engine::on_joiner(const Endpoint& from, const Packet& packet, Time now) {
  if (admission_.stopped()) return DropReason::kNotJoined;
  if (packet.kind() == wire::Kind::kHello) return admission_.on_hello(from, packet, now);
  const DropReason drop = admission_.on_join(from, packet, now);
  if (const Job* const job = jobs_.find(packet.job()))
    deadline_ = std::min(deadline_, job->next_deadline());
  return drop;
}

// ----------------------------------------------------------------------------------------- time
void Engine::on_time(Time now, PacketSink& sink) {
  if (context_.stalled.due() != kNever) context_.stalled.retry(now, sink);
  if (now < deadline_) return;
  sink.enter(Stage::kOther);
  if (admission_.stopped()) {
    ask_who_stays(now);
    return flush(sink);
  }
  deadline_ = kNever;
  jobs_.for_each([&](Job& job) {
    job.on_time(now);
    deadline_ = std::min(deadline_, job.next_deadline());
  });
  flush(sink);
}

void Engine::on_disconnect(std::uint16_t port_id, Time now, PacketSink& sink) {
  if (admission_.stopped()) return;  // the rank may be joining the next aggregator
  jobs_.for_each([&](Job& job) { job.on_disconnect(port_id, now); });
  deadline_ = std::min(deadline_, now);
  flush(sink);
}

void Engine::excuse_pause(Duration pause) {
  jobs_.for_each([&](Job& job) { job.excuse_pause(pause); });
}

// ------------------------------------------------------------------------------------ operators
void Engine::adjust(const EngineConfig& to) {
  EngineConfig& config = context_.config;
  config.jobs_max = to.jobs_max;
  config.reply_rate_limit = to.reply_rate_limit;
  config.straggler_warning = to.straggler_warning;
  config.secret = to.secret;
  admission_.set_reply_rate(to.reply_rate_limit);
}

void Engine::retire(Time now, PacketSink& sink) {
  admission_.stop();
  jobs_.for_each([&](Job& job) { job.retire(now); });
  ask_who_stays(now);
  flush(sink);
}

bool Engine::retired() const {
  return jobs_.all_of([](const Job& job) { return job.retired(); });
}

void Engine::ask_who_stays(Time now) {
  jobs_.for_each([](Job& job) { job.ask_who_stays(); });
  deadline_ = after(now, kSendAwayInterval);
}

bool Engine::kick(std::uint32_t id, Time now, PacketSink& sink) {
  Job* const job = jobs_.find(id);
  if (job == nullptr || job->membership().idle()) return false;
  job->abort({.reason = wire::AbortReason::kKicked}, now);
  flush(sink);
  return true;
}

bool Engine::limit_streams(std::uint32_t id, std::uint16_t streams) {
  Job* const job = jobs_.find(id);
  if (job == nullptr || !job->membership().active()) return false;
  job->limit_streams(streams);
  return true;
}

std::vector<JobFigures> Engine::figures_of_jobs(Time now) {
  std::vector<JobFigures> all;
  all.reserve(live_jobs());
  jobs_.for_each([&](Job& job) {
    if (!job.membership().idle()) all.push_back(job.figures(now));
  });
  return all;
}

}  // namespace sluice::aggregator
