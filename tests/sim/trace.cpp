#include "tests/sim/trace.hpp"

#include <cstdarg>
#include <cstdio>
#include <string>

#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/packet.hpp"

namespace sluice::sim {
namespace {

double milliseconds_of(Time now) {
  return std::chrono::duration<double, std::milli>(now.time_since_epoch()).count();
}

std::string number(const char* label, std::uint64_t value) {
  return std::string(" ") + label + " " + std::to_string(value);
}

std::string id(const char* label, std::uint64_t value) {
  return std::string(" ") + label + " #" + std::to_string(value % 10000);
}

std::string columns_of(const Packet& packet) {
  std::string text;
  const auto index = [](std::uint32_t i) {
    return i == kNoBlock.value ? std::string("-") : std::to_string(i);
  };
  for (const wire::Column& c : packet.columns()) {
    if (c.index == kNoBlock.value || text.size() >= 60) continue;
    text.append(" ").append(index(c.index));
    text.append((c.flags & wire::kColumnPresent) != 0 ? "*>" : ">").append(index(c.next));
  }
  return text;
}

/// The interesting fields of a kind, except job, sender and stream.
template <class T>
std::string details(const Packet&, const T&) {
  return {};
}
std::string details(const Packet&, const wire::Hello& hello) {
  return id("nonce", hello.nonce);
}
std::string details(const Packet&, const wire::Join& join) {
  return number("rank", join.rank) + id("nonce", join.nonce) + number("serial", join.serial) +
         id("gen", join.generation) + id("epoch", join.epoch) +
         (join.flags != 0 ? " no progress" : "");
}
std::string details(const Packet&, const wire::KeepAlive& keep_alive) {
  return number("n", keep_alive.number);
}
std::string details(const Packet&, const wire::Leave& leave) {
  return number("abort", leave.abort) + (leave.reason != 0 ? ": " + explain(to_info(leave)) : "");
}
std::string details(const Packet& packet, const wire::Data& data) {
  return number("r", data.round) + number("op", data.op) +
         ((data.flags & wire::kDataOpening) != 0 ? " opening" : "") +
         ((data.flags & wire::kDataAsk) != 0 ? " ask" : "") + columns_of(packet);
}
std::string details(const Packet&, const wire::Ack& ack) {
  return number("pos", ack.position);
}
std::string details(const Packet&, const wire::Probe& probe) {
  return number("pos", probe.position) + number("have", probe.have);
}
std::string details(const Packet&, const wire::Sync& sync) {
  return number("applied", sync.applied);
}
std::string details(const Packet&, const wire::Challenge& challenge) {
  return id("nonce", challenge.nonce) + number("serial", challenge.serial);
}
std::string details(const Packet&, const wire::Pending& pending) {
  return id("nonce", pending.nonce);
}
std::string details(const Packet&, const wire::Welcome& welcome) {
  return id("nonce", welcome.nonce) + id("gen", welcome.generation) + id("epoch", welcome.epoch) +
         ((welcome.flags & wire::kWelcomeResume) != 0 ? " resume" : "");
}
std::string details(const Packet&, const wire::Refused& refused) {
  return id("token", refused.token);
}
std::string details(const Packet&, const wire::Abort& abort) {
  return id("gen", abort.generation) + id("nonce", abort.nonce) + ": " + explain(to_info(abort));
}
std::string details(const Packet&, const wire::KeepAliveAck& ack) {
  return number("n", ack.number);
}
std::string details(const Packet&, const wire::Versions& versions) {
  return id("nonce", versions.nonce) + number("lowest", versions.lowest) +
         number("highest", versions.highest);
}
std::string details(const Packet& packet, const wire::Result& result) {
  return number("r", result.round) + number("op", result.op) + columns_of(packet);
}
std::string details(const Packet&, const wire::Status& status) {
  std::string text = number("r", status.round) + (status.live != 0 ? " waiting" : " syncing");
  RankSet::from_bytes(status.waiting).for_each([&](Rank w) { text += number("", w.value); });
  return text;
}

std::string text_of(const Packet& p) {
  std::string text = std::string(wire::name(p.kind())) + number("job", p.job());
  switch (wire::row_of(p.kind())->beginning) {
    case wire::Beginning::kHeader:
      break;
    case wire::Beginning::kMemberHeader:
      text += number("rank", p.member().rank) + number("s", p.member().stream);
      break;
    case wire::Beginning::kDeliveryHeader:
      text += id("epoch", p.delivery().epoch) + number("s", p.delivery().stream);
      break;
  }
  if (p.is_encrypted()) return text + " encrypted";
  visit(p, [&](const auto& fixed) { text += details(p, fixed); });
  return text;
}

}  // namespace

void trace(const char* what, Time now, const Endpoint& from, const Endpoint& to,
           std::span<const std::byte> datagram) {
  Packet packet;
  const DropReason bad = Packet::parse(datagram, packet);
  const std::string text =
      bad == DropReason::kNone ? text_of(packet) : "not a packet: " + std::string(name(bad));
  std::printf("%10.3f %s %x > %x %s (%zu)\n", milliseconds_of(now), what, from.ipv4, to.ipv4,
              text.c_str(), datagram.size());
}

void trace_note(bool on, Time now, const char* format, ...) {
  if (!on) return;
  std::printf("%10.3f ------ ", milliseconds_of(now));
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

}  // namespace sluice::sim
