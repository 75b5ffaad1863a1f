#include "worker/engine/aggregator_addresses.hpp"

#include <algorithm>

namespace sluice::worker {
namespace {

constexpr int kPausesWithoutAnswer = 4;  // the longest between two HELLOs
constexpr unsigned kMaxFollowed = 4;     // a port that does not answer counts twice
constexpr unsigned kMaxAskedInVain = 6;  // 0.6 s when a join begins, later 1.5 s

bool same_address(const Endpoint& a, const Endpoint& b) {
  return a.port_id == b.port_id && a.ipv4 == b.ipv4 && a.udp_port == b.udp_port;
}

}  // namespace

AggregatorAddresses::AggregatorAddresses(const EngineConfig& config, std::uint16_t aggregator,
                                         std::uint16_t lane, const Endpoint& first)
    : config_(config),
      aggregator_(aggregator),
      lane_(lane),
      own_port_(first.local_udp_port),
      addresses_(aggregator < config.addresses.size() ? std::max(1u, config.addresses[aggregator])
                                                      : 1u) {
  for (Address& address : addresses_) {
    address.endpoint = of_lane(first);  // until it is located
    address.source_port = own_port_;
  }
}

Endpoint AggregatorAddresses::of_lane(Endpoint aggregator) const {
  aggregator.udp_port = static_cast<std::uint16_t>(aggregator.udp_port + lane_);
  aggregator.lane = static_cast<std::uint8_t>(lane_);
  return aggregator;
}

void AggregatorAddresses::begin(bool home_may_live, Time now) {
  attempts_ = 0;
  began_ = now;
  if (!home_may_live) home_incarnation_ = 0;
  for (Address& address : addresses_) {
    address.incarnation = 0;
    address.next_is_answered = true;
    address.answered_at = kNever;
    address.followed = address.asked_in_vain = 0;
  }
}

bool AggregatorAddresses::answers(const Address& address, Time now) const {
  return address.answered_at != kNever &&
         now - address.answered_at < kPausesWithoutAnswer * config_.join_retry_max;
}

bool AggregatorAddresses::home_answers(Time now) const {
  const Address& home = addresses_[home_];
  return home_incarnation_ != 0 && home.incarnation == home_incarnation_ && answers(home, now);
}

std::size_t AggregatorAddresses::first_that_answers(Time now) const {
  const auto found = std::find_if(addresses_.begin(), addresses_.end(),
                                  [&](const Address& address) { return answers(address, now); });
  return static_cast<std::size_t>(found - addresses_.begin());
}

/// Half of the attempts go to the preferred address: the home for a while, if it may live, else
/// the first that answers. The others share the rest. The home always stays among them: the other
/// ranks may still be members there.
std::size_t AggregatorAddresses::choose(Time now) {
  const std::size_t attempt = attempts_++;
  const std::size_t of_others = attempt / 2;
  const bool home_may_live = home_incarnation_ != 0;
  const bool is_early = now - began_ < kPausesWithoutAnswer * config_.join_retry_max;
  const bool prefers_home = home_may_live && (is_early || home_answers(now));
  const std::size_t first = first_that_answers(now);
  if (attempt % 2 == 0 && prefers_home) return home_;
  if (first == addresses_.size()) return (prefers_home ? of_others : attempt) % addresses_.size();
  if (attempt % 2 == 0) return first;
  if (!home_may_live) return of_others % (first + 1);
  if (of_others % 2 == 0) return prefers_home ? first : home_;
  return of_others / 2 % (first + 1);
}

std::optional<Endpoint> AggregatorAddresses::next(Time now) {
  const std::size_t at = choose(now);
  Address& address = addresses_[at];
  if (address.source_port != own_port_ && address.asked_in_vain >= kMaxAskedInVain) {
    send_from(address, own_port_);
    address.ports_are_dead = ++address.followed >= kMaxFollowed;
  }
  const auto place = place_of(at, now);
  if (place) ++address.asked_in_vain;
  return place;
}

std::optional<Endpoint> AggregatorAddresses::place_of(std::size_t at, Time now) {
  Address& address = addresses_[at];
  if (!config_.locate) return address.endpoint;
  const unsigned look = answers(address, now) ? 1 : address.looks++;
  const auto attempt = static_cast<unsigned>(at + addresses_.size() * look);
  const auto found = config_.locate(aggregator_, attempt);
  if (!found) return std::nullopt;
  address.located = of_lane(*found);
  address.located->local_udp_port = address.source_port;
  const bool may_be_elsewhere =
      found->off_machine && address.answered && same_address(*address.answered, *address.located);
  if (!may_be_elsewhere) return address.endpoint = address.located;
  address.endpoint = address.next_is_answered ? address.answered : address.located;
  address.next_is_answered = !address.next_is_answered;
  return address.endpoint;
}

bool AggregatorAddresses::is_current(const Endpoint& endpoint) const {
  return same_address(current(), endpoint);
}

/// With a single address, the answer may come from anywhere: the engine's caller checks that.
std::optional<std::size_t> AggregatorAddresses::find(const Endpoint& from) const {
  if (addresses_.size() == 1) return 0;
  for (std::size_t i = 0; i < addresses_.size(); ++i)
    if (same_address(*addresses_[i].endpoint, from)) return i;
  return std::nullopt;
}

/// Uses only places that we asked ourselves: a copy of an answer may come from anywhere.
void AggregatorAddresses::go_on_with(Address& address, const Endpoint& from) {
  if (address.located && address.located->mac == from.mac) address.answered = address.located;
  if (address.answered && address.answered->mac == from.mac) address.endpoint = address.answered;
}

bool AggregatorAddresses::on_challenge(const Endpoint& from, std::uint64_t incarnation, Time now) {
  const auto at = find(from);
  if (!at) return false;
  const bool is_home = *at == home_ && incarnation == home_incarnation_;
  if (!is_home && (home_answers(now) || *at > first_that_answers(now))) return false;
  addresses_[*at].incarnation = incarnation;
  addresses_[*at].answered_at = now;
  if (from.local_udp_port == addresses_[*at].source_port) addresses_[*at].asked_in_vain = 0;
  if (from.local_udp_port != own_port_) addresses_[*at].ports_are_dead = false;
  go_on_with(addresses_[*at], from);
  current_ = *at;
  return true;
}

void AggregatorAddresses::send_from(Address& address, std::uint16_t udp_port) {
  address.source_port = udp_port;
  address.asked_in_vain = 0;
  for (auto* place : {&address.endpoint, &address.located, &address.answered})
    if (*place) (*place)->local_udp_port = udp_port;
}

AggregatorAddresses::Next AggregatorAddresses::follow(const Endpoint& from,
                                                      const SourcePorts& announced) {
  Address& address = addresses_[current_];
  if (from.local_udp_port != address.source_port && from.local_udp_port != own_port_)
    return Next::kAwait;  // a copy, sent to where we never asked from
  address.announced = announced;
  const std::uint16_t wanted = announced[lane_];
  const bool is_there = wanted == 0 || wanted == from.local_udp_port;
  if (!is_there && wanted == address.source_port) return Next::kAwait;
  if (is_there || address.ports_are_dead || address.followed >= kMaxFollowed) {
    if (from.local_udp_port != address.source_port) send_from(address, from.local_udp_port);
    return Next::kJoin;
  }
  ++address.followed;
  send_from(address, wanted);
  return Next::kAskAgain;
}

void AggregatorAddresses::send_from_ports_of(const AggregatorAddresses& other) {
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    addresses_[i].ports_are_dead = other.addresses_[i].ports_are_dead;
    const std::uint16_t announced = other.addresses_[i].announced[lane_];
    if (announced != 0 && !addresses_[i].ports_are_dead) send_from(addresses_[i], announced);
  }
}

bool AggregatorAddresses::on_welcome(const Endpoint& from, std::uint64_t incarnation) {
  const auto at = find(from);
  if (!at || addresses_[*at].incarnation != incarnation) return false;
  if (from.local_udp_port != addresses_[*at].source_port)
    send_from(addresses_[*at], from.local_udp_port);  // to where results go
  go_on_with(addresses_[*at], from);
  current_ = home_ = *at;
  home_incarnation_ = incarnation;
  return true;
}

}  // namespace sluice::worker
