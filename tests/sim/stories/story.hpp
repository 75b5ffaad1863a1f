// Stories: what one fault, at one moment, does to a small cluster, told in the order of what
// happens.
//
// A story is a simulation without random faults. It names its cast, says what happens and when,
// lets the simulation end, and says what each rank got:
//
//   STORY("A rank that dies is named to all others within the liveness time-out") {
//     begins({.ranks = 3});
//     until_sent(5, Kind::kResult, shard(0), rank(0));
//     rank(1).dies();
//     ends();
//     rank(0).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + ms(50)});
//   }
//
// Moments are events of the protocol where possible. What random seeds check (results to the bit,
// causes and times of errors, buffers, hangs) is checked here, too. `./sluice-stories --list-tests`
// prints the titles; begins({...}, Tracing::kOn) prints every packet of a story.
//
// stories/reliability.cpp has at least one for each promise of docs/reliability.md that the engines
// keep. What daemons and libraries keep (memory, peers of one machine, settings) no story can show.
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

/// Who is there, and what all ranks do: sums of dense tensors, one after the other.
struct Cast {
  unsigned ranks = 3;
  unsigned shards = 1;
  unsigned jobs = 1;
  bool standby = false;     ///< of shard 0, running from the start
  std::size_t sums = 2;     ///< that each rank calls
  std::size_t blocks = 40;  ///< of each; a round of a stream has one
  unsigned streams = 1;     ///< of each shard
  Trust trust = Trust::kNone;
  /// Whatever else a scenario can have.
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

  /// What an error must say.
  struct Says {
    std::optional<unsigned> rank = {};  ///< at fault
    Duration after{};                   ///< the last act, at the earliest
    Duration within = kNever.time_since_epoch();
    std::string text = {};  ///< within the message
  };

  void begins(const Cast& cast, Tracing tracing = Tracing::kOff);

  // Who.
  RankOf rank(unsigned number, std::size_t job = 0);
  ShardOf shard(unsigned number);
  ShardOf standby(unsigned number);
  Link link(const ShardOf& from, const RankOf& to);
  Link link(const RankOf& from, const ShardOf& to);

  // When.
  void until(const std::function<bool()>& holds);
  void until_all_have_joined();
  template <class From, class To>
  void until_sent(std::uint64_t packets, Kind kind, const From& from, const To& to);
  void passes(Duration time);
  void ends();

  // What has come of it.
  void all_sums_are_right(std::size_t job = 0);
  /// Since the last act.
  Duration since_act() const;
  std::uint64_t counted(const std::string& name);  ///< by all processes; after the end

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

/// What was sent of a kind on a path.
struct Story::Sent {
  std::uint64_t packets = 0;
  std::size_t shortest = std::numeric_limits<std::size_t>::max();
  std::size_t longest = 0;
};

class Story::RankOf {
 public:
  void dies();         ///< without a word
  void disconnects();  ///< dies, and its port tells so
  void stops_for(Duration length);

  // After the end.
  /// All sums, and no error.
  void got_all_sums() const;
  void got(ErrorCode code, const Says& says = {}) const;
  /// Since an aggregator came back, it told to have applied all results below this round.
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
  /// Is killed, and boots again after so long.
  void crashes(Duration down);
  void is_lost();  ///< killed for good
  /// As by SIGTERM; boots again when it has been down for so long, or never.
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
  /// These come a second time.
  void repeats(unsigned packets, Kind kind, Duration later);
  /// One bit of each is another, in the values that it carries.
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

/// Its body is one of a Story's.
#define STORY(title) TEST_CASE_METHOD(sluice::sim::Story, title)
