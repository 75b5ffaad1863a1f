// Settings that are one of a few words, shared by the daemon and the worker library.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/idle_strategy.hpp"
#include "common/base/log_level.hpp"
#include "common/base/udp_checksum.hpp"
#include "common/config/value.hpp"

namespace sluice::config {

template <class Value, std::size_t n>
using Choices = std::array<std::pair<Value, std::string_view>, n>;

inline constexpr Choices<IdleStrategy, 3> kIdleChoices{{{IdleStrategy::kBusySpin, "busy-spin"},
                                                        {IdleStrategy::kYield, "yield"},
                                                        {IdleStrategy::kBackOff, "backoff"}}};

inline constexpr Choices<UdpChecksum, 3> kUdpChecksumChoices{
    {{UdpChecksum::kAuto, "auto"}, {UdpChecksum::kSoftware, "on"}, {UdpChecksum::kNone, "off"}}};

/// Whether packets carry a CRC32C. kAuto: if any of them leave the machine.
enum class Integrity { kAuto, kOn, kOff };
inline constexpr Choices<Integrity, 3> kIntegrityChoices{
    {{Integrity::kAuto, "auto"}, {Integrity::kOn, "on"}, {Integrity::kOff, "off"}}};

/// Which users may give the daemon commands.
enum class ControlAccess { kOwner, kGroup };
inline constexpr Choices<ControlAccess, 2> kControlAccessChoices{
    {{ControlAccess::kOwner, "owner"}, {ControlAccess::kGroup, "group"}}};

inline constexpr Choices<LogLevel, 5> kLogLevelChoices{{{LogLevel::kTrace, "trace"},
                                                        {LogLevel::kDebug, "debug"},
                                                        {LogLevel::kInfo, "info"},
                                                        {LogLevel::kWarn, "warn"},
                                                        {LogLevel::kError, "error"}}};

inline constexpr Choices<LogFormat, 3> kLogFormatChoices{
    {{LogFormat::kText, "text"}, {LogFormat::kJson, "json"}, {LogFormat::kJournald, "journald"}}};

template <class Value, std::size_t n>
std::vector<std::string> words_of(const Choices<Value, n>& choices) {
  std::vector<std::string> words;
  for (const auto& [value, word] : choices) words.emplace_back(word);
  return words;
}

template <class Value, std::size_t n>
std::string describe(const Choices<Value, n>& choices) {
  return join(words_of(choices), "|");
}

/// Throws must_be(name, "a|b|c", text).
template <class Value, std::size_t n>
Value parse_choice(std::string_view name, const Choices<Value, n>& choices, std::string_view text) {
  for (const auto& [value, word] : choices)
    if (word == text) return value;
  throw must_be(name, describe(choices), text);
}

template <class Value, std::size_t n>
std::string_view word_of(const Choices<Value, n>& choices, Value value) {
  for (const auto& [candidate, word] : choices)
    if (candidate == value) return word;
  return "?";
}

}  // namespace sluice::config
