// The host's side of IGMP: it reports to switches and routers which multicast groups a port wants,
// and answers their queries. It uses version 3 (RFC 3376), for groups of any source; and version 2
// (RFC 2236) for some time after a query of that version was received.
//
// A group that was joined or left is reported at once, and again after a while, as reports may be
// lost. A query is answered after a random time, so that hosts do not answer all at once. Any host
// on the link can send queries, so answers are limited: one message per kAnswerGap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/time.hpp"

namespace sluice::net {

/// How many groups a port can join at once: each frame to a group is compared with all of them, and
/// in version 2 each needs its own answer, of which there are ten per second.
inline constexpr std::size_t kMaxGroups = 8;

inline constexpr std::uint32_t kAllHosts = 0xe000'0001;         ///< 224.0.0.1, general queries
inline constexpr std::uint32_t kAllRouters = 0xe000'0002;       ///< 224.0.0.2, leaves of version 2
inline constexpr std::uint32_t kReportsVersion3 = 0xe000'0016;  ///< 224.0.0.22

/// The minimum of every message: type, a number, checksum and a group.
inline constexpr std::size_t kIgmpBytes = 8;

/// A message to send; its checksum is still 0, and `to` is in host byte order.
struct IgmpMessage {
  static constexpr std::size_t kRecordBytes = 8;
  /// Groups that were left are reported, too.
  static constexpr std::size_t kMaxBytes = kIgmpBytes + 2 * kMaxGroups * kRecordBytes;

  std::span<const std::byte> bytes() const { return std::span(buffer).first(size); }

  std::uint32_t to = 0;
  std::size_t size = 0;
  std::array<std::byte, kMaxBytes> buffer{};
};

/// IGMP for one port.
class Igmp {
 public:
  static constexpr Duration kUnsolicitedInterval = std::chrono::seconds(1);
  static constexpr Duration kQueryInterval = std::chrono::seconds(125);
  /// The least time between messages that answer queries, however many queries come.
  static constexpr Duration kAnswerGap = std::chrono::milliseconds(100);

  /// The outcome of a received message.
  enum class Outcome : std::uint8_t {
    kQuery,    ///< it will be answered
    kReport,   ///< from another host; it replaces our answer
    kIgnored,  ///< malformed, or not about our groups
  };

  /// Random times depend on `seed`, so that hosts choose different ones.
  explicit Igmp(std::uint64_t seed);

  /// Sets the joined groups, at most kMaxGroups, in host byte order; none may be in 224.0.0.0/24.
  /// Changes become due for a report at once.
  void set_groups(std::span<const std::uint32_t> groups);

  /// Lets all groups be reported at once, as if they were newly joined: another switch may be at
  /// the other end of the link.
  void report_again();

  /// Takes a message whose checksum was right.
  Outcome take(std::span<const std::byte> message, Time now);

  /// When next_message() returns something; kNever if there is nothing to send.
  Time next_time() const;

  /// The next message that is due; call it until it returns nothing.
  std::optional<IgmpMessage> next_message(Time now);

 private:
  struct Group {
    std::uint32_t ipv4 = 0;
    bool joined = false;        // false: it was left, and that must still be reported
    unsigned changes_left = 0;  // remaining reports of the last change
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
  Time version2_until_ = Time::min();  // a querier of version 2 is there until then
  Time next_answer_ = Time::min();     // not before
};

}  // namespace sluice::net
