// The addresses at which one shard may be found: its aggregator's, then those of the standbys. A
// lane listens at the aggregator's UDP port plus its own number.
//
// All ranks must meet at one of them, so each rank prefers the first that answers. While one
// answers, the rank also asks those before it, but no others. While none does, it asks all in turn.
// It asks its home first, if it only received nothing from there for a while.
//
// Any machine on a network may claim an address by ARP. So every second HELLO goes to the Ethernet
// address from which the aggregator answered last, no matter what ARP says now. Packets that follow
// an answer go to that one of the two from which the answer came. The rank asks all claimants only
// while none answers: it must not join at two.
//
// An aggregator may announce from which UDP ports it wants to receive. That is a hint. The rank
// follows it a few times in a join, and not if nothing answers then (a firewall may allow only our
// own port).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/source_ports.hpp"
#include "common/base/time.hpp"
#include "worker/engine/config.hpp"

namespace sluice::worker {

class AggregatorAddresses {
 public:
  /// `first`: where the aggregator's lane 0 listens.
  AggregatorAddresses(const EngineConfig& config, std::uint16_t aggregator, std::uint16_t lane,
                      const Endpoint& first);

  /// Where packets of the membership go.
  const Endpoint& current() const { return *addresses_[current_].endpoint; }

  bool is_current(const Endpoint& endpoint) const;
  /// Whether an answer may be from the aggregator at current().
  bool comes_from_current(const Endpoint& from) const { return find(from) == current_; }

  bool has_standby() const { return addresses_.size() > 1; }

  /// A join begins: no aggregator has answered it yet. `home_may_live`: the aggregator that took us
  /// in last has not said that it does not know us.
  void begin(bool home_may_live, Time now);

  /// Where to ask next; nothing while that address cannot be reached.
  std::optional<Endpoint> next(Time now);

  /// A CHALLENGE of an aggregator's incarnation. True if that is where to join.
  bool on_challenge(const Endpoint& from, std::uint64_t incarnation, Time now);

  /// What to do after that CHALLENGE, which came to `from.local_udp_port`.
  enum class Next {
    kJoin,      ///< with it, from that port
    kAskAgain,  ///< from the port that it announces: the CHALLENGE does not prove that one
    kAwait,     ///< the answer to what was asked from there
  };
  Next follow(const Endpoint& from, const SourcePorts& announced);

  /// Begins with the ports that the aggregator announced to the membership of another of its lanes.
  void send_from_ports_of(const AggregatorAddresses& other);

  /// A WELCOME. True if it comes from where we asked to join, and is no earlier incarnation's.
  bool on_welcome(const Endpoint& from, std::uint64_t incarnation);

 private:
  struct Address {
    std::optional<Endpoint> endpoint;  // where packets go: one of the next two
    std::optional<Endpoint> located;   // where the address was located last
    std::optional<Endpoint> answered;  // it has answered from there last
    bool next_is_answered = true;      // if that is another than where it is located
    std::uint64_t incarnation = 0;     // that challenged us in this join; 0: none
    Time answered_at = kNever;
    unsigned looks = 0;
    std::uint16_t source_port = 0;  // ours
    SourcePorts announced{};        // last
    unsigned followed = 0;          // times, in this join
    unsigned asked_in_vain = 0;     // from that port
    bool ports_are_dead = false;    // those announced: nothing was answered there, in any join
  };

  Endpoint of_lane(Endpoint aggregator) const;
  std::optional<std::size_t> find(const Endpoint& from) const;
  static void go_on_with(Address& address, const Endpoint& from);
  static void send_from(Address& address, std::uint16_t udp_port);
  std::size_t choose(Time now);
  std::optional<Endpoint> place_of(std::size_t at, Time now);
  bool answers(const Address& address, Time now) const;
  bool home_answers(Time now) const;
  std::size_t first_that_answers(Time now) const;  // addresses_.size(): none

  const EngineConfig& config_;
  const std::uint16_t aggregator_;
  const std::uint16_t lane_;
  const std::uint16_t own_port_;
  std::vector<Address> addresses_;
  std::size_t current_ = 0;
  std::size_t home_ = 0;  // where we were welcomed last, and by which incarnation of the aggregator
  std::uint64_t home_incarnation_ = 0;  // 0: it is over
  std::size_t attempts_ = 0;
  Time began_{};
};

}  // namespace sluice::worker
