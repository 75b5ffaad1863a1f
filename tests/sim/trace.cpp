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
  for (const wire::Column& c : packet.columns())
    if (c.index != kNoBlock.value && text.size() < 60)
      text += " " + index(c.index) + ((c.flags & wire::kColumnPresent) != 0 ? "*" : "") + ">" +
              index(c.next);
  return text;
}

std::string text_of(const Packet& p) {
  using wire::Kind;
  std::string text = number("job", p.job());
  const auto up = [&] { text += number("rank", p.member().rank) + number("s", p.member().stream); };
  const auto down = [&] {
    text += id("epoch", p.delivery().epoch) + number("s", p.delivery().stream);
  };
  switch (p.kind()) {
    case Kind::kHello:
      return "HELLO" + text + id("nonce", p.as<wire::Hello>().nonce);
    case Kind::kJoin: {
      const auto& j = p.as<wire::Join>();
      return "JOIN" + text + number("rank", j.rank) + id("nonce", j.nonce) +
             number("serial", j.serial) + id("gen", j.generation) + id("epoch", j.epoch) +
             (j.flags != 0 ? " virgin" : "");
    }
    case Kind::kKeepAlive:
      up();
      return "KEEPALIVE" + text + number("n", p.as<wire::KeepAlive>().number);
    case Kind::kLeave:
      up();
      return "LEAVE" + text + number("abort", p.as<wire::Leave>().abort);
    case Kind::kData: {
      const auto& d = p.as<wire::Data>();
      up();
      return "DATA" + text + number("r", d.round) + number("op", d.op) +
             ((d.flags & wire::kDataOpening) != 0 ? " opening" : "") +
             ((d.flags & wire::kDataAsk) != 0 ? " ask" : "") + columns_of(p);
    }
    case Kind::kAck:
      up();
      return "ACK" + text + number("pos", p.as<wire::Ack>().position);
    case Kind::kProbe:
      up();
      return "PROBE" + text + number("pos", p.as<wire::Probe>().position) +
             number("have", p.as<wire::Probe>().have);
    case Kind::kChallenge:
      return "CHALLENGE" + text + id("nonce", p.as<wire::Challenge>().nonce) +
             number("serial", p.as<wire::Challenge>().serial);
    case Kind::kPending:
      return "PENDING" + text + id("nonce", p.as<wire::Pending>().nonce);
    case Kind::kWelcome:
      return "WELCOME" + text + id("nonce", p.as<wire::Welcome>().nonce) +
             id("gen", p.as<wire::Welcome>().generation) +
             id("epoch", p.as<wire::Welcome>().epoch) +
             ((p.as<wire::Welcome>().flags & wire::kWelcomeResume) != 0 ? " resume" : "");
    case Kind::kRefused:
      return "REFUSED" + text + id("token", p.as<wire::Refused>().token);
    case Kind::kAbort: {
      const auto& a = p.as<wire::Abort>();
      return "ABORT" + text + id("gen", a.generation) + id("nonce", a.nonce) + ": " +
             explain(to_info(a));
    }
    case Kind::kLeft:
      return "LEFT" + text;
    case Kind::kKeepAliveAck:
      return "KEEPALIVE_ACK" + text + number("n", p.as<wire::KeepAliveAck>().number);
    case Kind::kResult: {
      const auto& r = p.as<wire::Result>();
      down();
      return "RESULT" + text + number("r", r.round) + number("op", r.op) + columns_of(p);
    }
    case Kind::kStatus: {
      const auto& s = p.as<wire::Status>();
      down();
      text += number("r", s.round) + (s.live != 0 ? " waiting" : " syncing");
      RankSet::from_bytes(s.waiting).for_each([&](Rank w) { text += number("", w.value); });
      return "STATUS" + text;
    }
    case Kind::kSync:
      up();
      return "SYNC" + text + number("applied", p.as<wire::Sync>().applied);
    case Kind::kPoll:
      down();
      return "POLL" + text;
    default:
      return "kind " + std::to_string(static_cast<int>(p.kind()));
  }
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
