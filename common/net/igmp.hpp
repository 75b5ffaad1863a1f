// The host's side of IGMP: tells switches and routers which multicast groups a port wants, and
// answers their queries. Version 3 (RFC 3376), for groups of any source; version 2 (RFC 2236) as
// long as a querier of that version was heard lately.
//
// A group that was joined or left is reported at once, and again after a while, as reports may be
// lost. A query is answered after a random time, so that hosts do not answer all at once. Anybody
// on the link can send queries, so what answers them is bounded: one message per kAnswerGap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/time.hpp"

namespace sluice::net {

/// Groups that a port can have joined at once: each frame to a group is compared with them, and in
/// version 2 each has an answer of its own, of which there are ten per second.
inline constexpr std::size_t kMaxGroups = 8;

inline constexpr std::uint32_t kAllHosts = 0xe000'0001;         ///< 224.0.0.1, general queries
inline constexpr std::uint32_t kAllRouters = 0xe000'0002;       ///< 224.0.0.2, leaves of version 2
inline constexpr std::uint32_t kReportsVersion3 = 0xe000'0016;  ///< 224.0.0.22

/// What every message has at least: type, a number, checksum and a group.
inline constexpr std::size_t kIgmpBytes = 8;

/// A message to be sent, with its checksum 0 still; `to` in host byte order.
struct IgmpMessage {
  static constexpr std::size_t kRecordBytes = 8;
  /// Groups that were left are reported, too.
  static constexpr std::size_t kMaxBytes = kIgmpBytes + 2 * kMaxGroups * kRecordBytes;

  std::span<const std::byte> bytes() const { return std::span(buffer).first(size); }

  std::uint32_t to = 0;
  std::size_t size = 0;
  std::array<std::byte, kMaxBytes> buffer{};
};

/// Of one port.
class Igmp {
 public:
  static constexpr Duration kUnsolicitedInterval = std::chrono::seconds(1);
  static constexpr Duration kQueryInterval = std::chrono::seconds(125);
  /// Between messages that answer queries, however many come and however soon they want answers.
  static constexpr Duration kAnswerGap = std::chrono::milliseconds(100);

  /// What became of a message that was received.
  enum class Outcome : std::uint8_t {
    kQuery,    ///< it will be answered
    kReport,   ///< another host's, instead of an answer of ours
    kIgnored,  ///< malformed, or not about us
  };

  /// Random times depend on `seed`: hosts take different ones.
  explicit Igmp(std::uint64_t seed);

  /// From now on exactly these groups are joined, at most kMaxGroups; those of 224.0.0.0/24 cannot
  /// be. Host byte order. What differs is to be reported at once.
  void set_groups(std::span<const std::uint32_t> groups);

  /// All groups are to be reported at once, as if they were joined anew: another switch may be at
  /// the other end of the link.
  void report_again();

  /// Takes a message whose checksum was right.
  Outcome take(std::span<const std::byte> message, Time now);

  /// When next_message() has one: kNever if nothing is to be sent.
  Time next_time() const;

  /// What is due, one message after the other; empty when nothing is.
  std::optional<IgmpMessage> next_message(Time now);

 private:
  struct Group {
    std::uint32_t ipv4 = 0;
    bool joined = false;        // else it was left, and that is to be reported still
    unsigned changes_left = 0;  // reports of the last change
    Time change_due = kNever;   // the next of these
    Time answer_due = kNever;   // to a query
  };

  bool is_version2(Time now) const { return now < version2_until_; }
  static bool has_change_due(const Group& group, Time now) { return group.change_due <= now; }
  Time due(const Group& group) const;
  Group* find(std::uint32_t ipv4);
  void change(Group& group, bool joined);
  Outcome take_query(std::span<const std::byte> message, Time now);
  Outcome take_report(std::uint32_t ipv4, Time now);
  IgmpMessage message_version2(Group& group, Time now);
  IgmpMessage report_version3(Time now);
  void sent(Group& group, Time now, Duration until_repeated);
  Duration random_up_to(Duration longest);

  std::vector<Group> groups_;
  std::uint64_t random_;
  unsigned robustness_;
  Time version2_until_ = Time::min();  // a querier of that version is there
  Time next_answer_ = Time::min();     // not before
};

}  // namespace sluice::net
