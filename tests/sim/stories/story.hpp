// Stories: the effect of one fault, at one moment, on a small cluster, in the order of events.
//
// A story is a simulation without random faults. It describes the cluster, says what happens and
// when, lets the simulation end, and says what each rank got:
//
//   STORY("A rank that dies is named to all others within the liveness time-out") {
//     begins({.ranks = 3});
//     until_sent(5, Kind::kResult, shard(0), rank(0));
//     rank(1).dies();
//     ends();
//     rank(0).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + ms(50)});
//   }
//
// Moments are events of the protocol if possible. The checks of random seeds (results to the bit,
// causes and times of errors, buffers, hangs) are made here, too. `./sluice-stories --list-tests`
// prints the titles; begins({...}, Tracing::kOn) prints every packet of a story.
//
// stories/reliability.cpp has at least one story for each promise of docs/reliability.md that the
// engines keep. A story cannot show what daemons and libraries keep (memory, peers of one machine,
// settings).
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <sluice/error.hpp>

#include "tests/sim/draw.hpp"
#include "tests/sim/simulation.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::sim {

using wire::Kind;

/// The cluster, and what all ranks do: sums of dense tensors, one after the other.
struct Setup {
  unsigned ranks = 3;
  unsigned shards = 1;
  unsigned jobs = 1;
  bool standby = false;     ///< of shard 0, running from the start
  std::size_t sums = 2;     ///< how many each rank calls
  std::size_t blocks = 40;  ///< of each sum; a round of a stream has one
  unsigned streams = 1;     ///< of each shard
  Trust trust = Trust::kNone;
  /// Changes anything else in the scenario.
  std::function<void(Scenario&)> also = [](Scenario&) {};
};

enum class Tracing { kOff, kOn };

class Story {
 public:
  Story();
  ~Story();

 protected:
  class RankOf;
  class ShardOf;
  class Link;

  /// What an error must contain.
  struct Says {
    std::optional<unsigned> rank = {};  ///< the one at fault
    Duration after{};                   ///< at the earliest, from the last act
    Duration within = kNever.time_since_epoch();
    std::string text = {};  ///< a part of the message
  };

  void begins(const Setup& setup, Tracing tracing = Tracing::kOff);

  // Members of the cluster.
  RankOf rank(unsigned number, std::size_t job = 0);
  ShardOf shard(unsigned number);
  ShardOf standby(unsigned number);
  Link link(const ShardOf& from, const RankOf& to);
  Link link(const RankOf& from, const ShardOf& to);

  // Moments.
  void until(const std::function<bool()>& holds);
  void until_all_have_joined();
  template <class From, class To>
  void until_sent(std::uint64_t packets, Kind kind, const From& from, const To& to);
  void passes(Duration time);
  void ends();

  // Results.
  void all_sums_are_right(std::size_t job = 0);
  /// Since the last act.
  Duration since_act() const;
  std::uint64_t counted(const std::string& name);  ///< by all processes; call it after the end

 private:
  struct Rule;
  struct Sent;
  using Path = std::tuple<Address, Address, Kind>;

  Time now() const;
  void acts();
  void add(Rule rule);
  bool loses(const Endpoint& from, const Endpoint& to, const Bytes& datagram);
  Sent& sent(Address from, Address to, Kind kind);

  std::unique_ptr<Scenario> scenario_;
  std::unique_ptr<Simulation> simulation_;
  std::list<Rule> rules_;
  std::map<Path, Sent> sent_;
  std::map<Address, std::map<std::uint64_t, std::uint64_t>> resumed_;  // by rank and stream
  Time acted_at_{};
  Coverage counted_;
  std::size_t sums_ = 0;
};

/// What was sent of one kind on one path.
struct Story::Sent {
  std::uint64_t packets = 0;
  std::size_t shortest = std::numeric_limits<std::size_t>::max();
  std::size_t longest = 0;
};

class Story::RankOf {
 public:
  void dies();         ///< dies without any packet
  void disconnects();  ///< dies, and its port signals that
  void stops_for(Duration length);

  // After the end.
  /// It has got all sums, and no error.
  void got_all_sums() const;
  void got(ErrorCode code, const Says& says = {}) const;
  /// After the restart of an aggregator, it reported that it has applied all results below this
  /// round.
  std::uint64_t resumed_from(unsigned stream = 0) const;

 private:
  friend Story;
  RankOf(Story& story, unsigned number, std::size_t job)
      : story_(story), number_(number), job_(job) {}
  const RankFacts& facts() const;
  Address address() const;

  Story& story_;
  unsigned number_;
  std::size_t job_;
};

class Story::ShardOf {
 public:
  /// Is killed, and boots again after this time.
  void crashes(Duration down);
  void is_lost();  ///< killed for good
  /// As by SIGTERM. Boots again after it was down for so long, or never.
  void is_told_to_end(std::optional<Duration> down = {});
  void stops_for(Duration length);

 private:
  friend Story;
  ShardOf(Story& story, unsigned number, bool standby)
      : story_(story), number_(number), standby_(standby) {}
  Address address() const { return address_of_shard(number_, standby_); }

  Story& story_;
  unsigned number_;
  bool standby_;
};

/// One direction of a path.
class Story::Link {
 public:
  void drops(unsigned packets, Kind kind);
  /// These packets come a second time.
  void repeats(unsigned packets, Kind kind, Duration later);
  /// Flips one bit in the values that each carries.
  void flips_bits(unsigned packets, Kind kind);
  void is_cut_for(Duration length);

  std::uint64_t sent(Kind kind) const;
  std::size_t shortest(Kind kind) const;
  std::size_t longest(Kind kind) const;

 private:
  friend Story;
  Link(Story& story, Address from, Address to, Cut cut)
      : story_(story), from_(from), to_(to), cut_(cut) {}

  Story& story_;
  Address from_;
  Address to_;
  Cut cut_;
};

template <class From, class To>
void Story::until_sent(std::uint64_t packets, Kind kind, const From& from, const To& to) {
  const Sent& of_path = sent(from.address(), to.address(), kind);
  until([&of_path, wanted = of_path.packets + packets] { return of_path.packets >= wanted; });
}

}  // namespace sluice::sim

/// Its body is a member function of a Story.
#define STORY(title) TEST_CASE_METHOD(sluice::sim::Story, title)
