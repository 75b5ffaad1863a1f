#include "common/protocol/drop_reason.hpp"

namespace sluice {

std::string_view name(DropReason reason) {
  constexpr std::array<std::string_view, kDropReasonCount> kNames{
      "none",          "too_short",     "bad_magic",         "bad_version",   "bad_kind",
      "bad_length",    "bad_flags",     "bad_enumeration",   "bad_shape",     "bad_index",
      "bad_integrity", "no_integrity",  "not_authentic",     "rate_limited",  "wrong_direction",
      "unknown_job",   "unknown_token", "wrong_incarnation", "bad_challenge", "stale_join",
      "bad_join",      "not_joined",    "wrong_epoch",       "bad_stream",    "stale_round",
      "duplicate",     "future_round",  "unfitting",         "no_buffer",
  };
  const auto index = static_cast<std::size_t>(reason);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace sluice
