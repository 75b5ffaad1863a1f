// The addresses at which one shard's aggregator may be found: its own, then those of its standbys.
//
// All ranks must come together at one of them, so each prefers the first that answers: while one
// answers, only those before it are asked as well; while none does, all are, one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/time.hpp"
#include "worker/config.hpp"

namespace sluice::worker {

class Places {
 public:
  Places(const EngineConfig& config, std::uint16_t shard, const Endpoint& first);

  /// Where packets of the session go.
  const Endpoint& current() const { return *places_[current_].endpoint; }

  bool has_standby() const { return places_.size() > 1; }

  /// A join begins: nobody has answered it yet.
  void begin();

  /// Where to ask next; nothing while that place cannot be reached.
  std::optional<Endpoint> next(Time now);

  /// A CHALLENGE of an aggregator's incarnation. True if that is where to join.
  bool on_challenge(const Endpoint& from, std::uint64_t incarnation, Time now);

  /// A WELCOME. True if it comes from where we asked to join, and is no earlier incarnation's.
  bool on_welcome(const Endpoint& from, std::uint64_t incarnation);

 private:
  struct Place {
    std::optional<Endpoint> endpoint;
    std::uint64_t incarnation = 0;  // that challenged us in this join; 0: none
    Time answered_at = kNever;
    unsigned looks = 0;
  };

  std::optional<std::size_t> find(const Endpoint& from) const;
  std::size_t first_that_answers(Time now) const;  // places_.size(): none

  const EngineConfig& config_;
  const std::uint16_t shard_;
  std::vector<Place> places_;
  std::size_t current_ = 0;
  std::size_t turn_ = 0;
};

}  // namespace sluice::worker
