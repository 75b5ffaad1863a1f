#include "common/net/igmp.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "common/base/multicast_address.hpp"
#include "common/net/big_endian.hpp"

namespace sluice::net {
namespace {

constexpr std::uint8_t kQuery = 0x11;
constexpr std::uint8_t kReportOfVersion2 = 0x16;
constexpr std::uint8_t kLeaveOfVersion2 = 0x17;
constexpr std::uint8_t kReportOfVersion3 = 0x22;

// Records of a report of version 3. Their lists of sources are empty, so they concern all sources.
constexpr std::uint8_t kModeIsExclude = 2;
constexpr std::uint8_t kChangeToInclude = 3;  // from no source: the group was left
constexpr std::uint8_t kChangeToExclude = 4;  // no source: the group was joined

// Offsets of fields within messages.
constexpr std::size_t kMaxResponse = 1;
constexpr std::size_t kGroup = 4;
constexpr std::size_t kRecords = 6;      // number of records in a report of version 3
constexpr std::size_t kQuerier = 8;      // flags and robustness, in a query of version 3
constexpr std::size_t kSources = 10;     // number of sources in a query of version 3
constexpr std::size_t kQueryBytes = 12;  // of version 3, before its sources

constexpr Duration kTenth = std::chrono::milliseconds(100);
constexpr Duration kResponseTimeOfVersion1 = std::chrono::seconds(10);
constexpr unsigned kDefaultRobustness = 2;

constexpr Time kAtOnce = Time::min();

// RFC 3376, 4.1.1: from 128 on it is a floating-point number, with an exponent and a mantissa
// without its first bit.
Duration response_time(std::uint8_t code) {
  if (code < 128) return code * kTenth;
  return ((code & 0xf) | 0x10) * (1 << ((code >> 4 & 7) + 3)) * kTenth;
}

}  // namespace

Igmp::Igmp(std::uint64_t seed) : random_(seed), robustness_(kDefaultRobustness) {
  groups_.reserve(2 * kMaxGroups);
}

Igmp::Group* Igmp::find(std::uint32_t ipv4) {
  const auto found = std::ranges::find(groups_, ipv4, &Group::ipv4);
  return found == groups_.end() ? nullptr : &*found;
}

// --- our groups --------------------------------------------------------------------------------

void Igmp::set_groups(std::span<const std::uint32_t> groups) {
  assert(groups.size() <= kMaxGroups);
  for (Group& group : groups_)
    if (group.joined && std::ranges::find(groups, group.ipv4) == groups.end()) change(group, false);
  for (const std::uint32_t ipv4 : groups) {
    assert(is_multicast(ipv4) && !is_link_local_multicast(ipv4));
    Group* group = find(ipv4);
    if (group == nullptr) {
      // If groups are joined and left this fast, only the first reports are sent.
      if (groups_.size() == 2 * kMaxGroups)
        groups_.erase(std::ranges::find(groups_, false, &Group::joined));
      group = &groups_.emplace_back(Group{.ipv4 = ipv4});
    }
    if (!group->joined) change(*group, true);
  }
}

void Igmp::change(Group& group, bool joined) {
  group.joined = joined;
  group.changes_left = robustness_;
  group.change_due = kAtOnce;
  group.answer_due = kNever;
}

void Igmp::report_again() {
  std::erase_if(groups_, [](const Group& group) { return !group.joined; });
  for (Group& group : groups_) change(group, true);
}

// --- received ----------------------------------------------------------------------------------

Igmp::Outcome Igmp::take(std::span<const std::byte> message, Time now) {
  if (message.size() < kIgmpBytes) return Outcome::kIgnored;
  switch (get8(message, 0)) {
    case kQuery:
      return take_query(message, now);
    case kReportOfVersion2:
      return take_report(get32(message, kGroup), now);
    default:
      return Outcome::kIgnored;
  }
}

/// A query about some sources of a group is answered as one about the group, as we want all
/// sources.
Igmp::Outcome Igmp::take_query(std::span<const std::byte> message, Time now) {
  const bool is_version3 = message.size() >= kQueryBytes;
  if (!is_version3 && message.size() != kIgmpBytes) return Outcome::kIgnored;
  if (is_version3 && message.size() < kQueryBytes + std::size_t{4} * get16(message, kSources))
    return Outcome::kIgnored;
  const std::uint32_t asked = get32(message, kGroup);  // 0: all
  const Group* const group = find(asked);
  if (asked != 0 && (group == nullptr || !group->joined)) return Outcome::kIgnored;

  const std::uint8_t code = get8(message, kMaxResponse);
  Duration longest = response_time(code);
  if (is_version3) {
    const unsigned robustness = get8(message, kQuerier) & 7;
    robustness_ = robustness == 0 ? kDefaultRobustness : robustness;
  } else {
    longest = code == 0 ? kResponseTimeOfVersion1 : code * kTenth;
    version2_until_ = after(now, robustness_ * kQueryInterval + longest);
  }
  // In version 3 one report answers for all groups, so they have the same time.
  const Duration delay = random_up_to(longest);
  for (Group& each : groups_) {
    if (!each.joined || (asked != 0 && each.ipv4 != asked)) continue;
    const Duration own = is_version2(now) ? random_up_to(longest) : delay;
    each.answer_due = std::min(each.answer_due, after(now, own));
  }
  return Outcome::kQuery;
}

/// In version 2 the answer of one host is enough.
Igmp::Outcome Igmp::take_report(std::uint32_t ipv4, Time now) {
  Group* const group = find(ipv4);
  if (!is_version2(now) || group == nullptr || group->answer_due == kNever)
    return Outcome::kIgnored;
  group->answer_due = kNever;
  return Outcome::kReport;
}

// --- to be sent --------------------------------------------------------------------------------

Time Igmp::due(const Group& group) const {
  if (group.answer_due == kNever) return group.change_due;
  return std::min(group.change_due, std::max(group.answer_due, next_answer_));
}

Time Igmp::next_time() const {
  Time next = kNever;
  for (const Group& group : groups_) next = std::min(next, due(group));
  return next;
}

std::optional<IgmpMessage> Igmp::next_message(Time now) {
  if (groups_.empty()) return std::nullopt;
  const auto by_due = [&](const Group& g) { return std::pair(due(g), g.answer_due); };
  // Of several, the one that waits longest.
  const auto first = std::ranges::min_element(groups_, {}, by_due);
  if (now < due(*first)) return std::nullopt;
  const IgmpMessage message =
      is_version2(now) ? message_version2(*first, now) : report_version3(now);
  std::erase_if(groups_, [](const Group& g) { return !g.joined && g.changes_left == 0; });
  return message;
}

IgmpMessage Igmp::message_version2(Group& group, Time now) {
  IgmpMessage message;
  message.to = group.joined ? group.ipv4 : kAllRouters;
  message.size = kIgmpBytes;
  put8(message.buffer, 0, group.joined ? kReportOfVersion2 : kLeaveOfVersion2);
  put32(message.buffer, kGroup, group.ipv4);
  if (!has_change_due(group, now)) next_answer_ = after(now, kAnswerGap);
  sent(group, now, random_up_to(kUnsolicitedInterval));
  return message;
}

/// A report of every group for which something is due.
IgmpMessage Igmp::report_version3(Time now) {
  IgmpMessage message;
  message.to = kReportsVersion3;
  message.size = kIgmpBytes;
  put8(message.buffer, 0, kReportOfVersion3);
  std::uint16_t records = 0;
  bool answers = false;
  const Duration until_repeated = random_up_to(kUnsolicitedInterval);
  for (Group& group : groups_) {
    if (now < due(group)) continue;
    const bool changed = has_change_due(group, now);
    const std::uint8_t change = group.joined ? kChangeToExclude : kChangeToInclude;
    put8(message.buffer, message.size, changed ? change : kModeIsExclude);
    put32(message.buffer, message.size + 4, group.ipv4);
    message.size += IgmpMessage::kRecordBytes;
    ++records;
    answers |= !changed;
    sent(group, now, until_repeated);
  }
  put16(message.buffer, kRecords, records);
  if (answers) next_answer_ = after(now, kAnswerGap);
  return message;
}

/// A report of a change also answers queries.
void Igmp::sent(Group& group, Time now, Duration until_repeated) {
  group.answer_due = kNever;
  if (!has_change_due(group, now)) return;
  --group.changes_left;
  group.change_due = group.changes_left == 0 ? kNever : after(now, until_repeated);
}

/// Vigna's splitmix64: good numbers from any seed, as the Ethernet addresses of hosts differ
/// little.
Duration Igmp::random_up_to(Duration longest) {
  std::uint64_t x = random_ += 0x9e37'79b9'7f4a'7c15;
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
  x ^= x >> 31;
  return Duration(x % (static_cast<std::uint64_t>(longest.count()) + 1));
}

}  // namespace sluice::net
