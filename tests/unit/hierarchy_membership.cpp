// Memberships of the ranks of several hosts, over jobs that are played here: what happens in them,
// and when, is drawn. Whatever it is, sums are right, every op ends once, in its order, and nobody
// waits for ever.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/catch.hpp"
#include "tests/unit/pairs_parts.hpp"
#include "tests/unit/rounds.hpp"
#include "worker/hierarchy/hierarchical_membership.hpp"

namespace hierarchy_membership_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace std::chrono_literals;
using Hierarchy = hierarchy::HierarchicalMembership;

namespace {

using Random = std::mt19937_64;
using Element = std::int32_t;

bool is_likely(Random& random, unsigned percent) {
  return random() % 100 < percent;
}

/// A job as its members see it: an op is done for a member some time after all have called it.
class PlayedJob {
 public:
  /// A request, or what is moved in place of one.
  struct Called {
    OpRequest request = {};
    host::MoveSequence* moves = nullptr;
  };
  struct Member {
    std::uint16_t number = 0;  ///< in this job
    Rank rank{};               ///< in the job of all
    std::deque<std::optional<Called>> called = {};
    std::size_t done = 0;
    bool is_in = false;   ///< has joined
    bool is_out = false;  ///< has left, failed, or died
    std::optional<AbortInfo> told = {};
    std::vector<Completion> completions = {};
    std::optional<Error> failure = {};
    std::optional<AbortInfo> abort_info = {};
    bool is_leaving = false;
    bool is_over = false;
  };

  /// `tells_ranks`: an abort names ranks of the job of all, else nobody.
  PlayedJob(std::vector<Rank> ranks, bool tells_ranks) : tells_ranks_(tells_ranks) {
    for (std::uint16_t i = 0; i < ranks.size(); ++i)
      members.push_back({.number = i, .rank = ranks[i]});
  }

  /// Something, perhaps: of one member that is drawn.
  void turn(Random& random) {
    Member& m = members[random() % members.size()];
    if (m.is_over) return;
    m.is_in = true;
    if (m.told && !m.failure && !m.is_leaving) return fail(m, *m.told);
    if (m.failure || m.is_leaving) {
      m.is_over = is_likely(random, 50);
      return;
    }
    if (m.done == m.called.size() || (m.done == summed_ && !sum())) return;
    host::MoveSequence* const moves = m.called[m.done]->moves;
    m.completions.push_back(
        {.op = m.done++, .statistics = {}, .error = moves ? moves->finish() : std::nullopt});
  }

  void abort(Member& by, const AbortInfo& why) {
    tell(by, tells_ranks_
                 ? why
                 : AbortInfo{.reason = wire::AbortReason::kRankAborted, .rank_a = number_of(by)});
    fail(by, why);
  }
  /// Noticed by the others sooner or later, where anybody may notice.
  void die(Member& m, bool is_noticed) {
    m.is_out = m.is_over = true;
    if (is_noticed)
      tell(m, {.reason = wire::AbortReason::kRankDisconnected, .rank_a = number_of(m)});
  }

  /// As this job speaks of it.
  Rank number_of(const Member& m) const { return tells_ranks_ ? m.rank : Rank{m.number}; }

  std::vector<Member> members;

 private:
  void tell(const Member& by, const AbortInfo& why) {
    for (Member& other : members)
      if (&other != &by && !other.is_out && !other.told) other.told = why;
  }
  void fail(Member& m, const AbortInfo& why) {
    if (m.failure || m.is_leaving) return;
    AbortInfo named = why;  // as JobLabel does
    if (!tells_ranks_) named.rank_a = members[why.rank_a.value].rank;
    m.failure = to_error(named, "7");
    m.abort_info = why;
  }
  /// Goes on with the next op, if all have called it. Whether it is done.
  bool sum() {
    std::vector<const OpRequest*> requests;
    std::vector<host::MoveSequence*> moves;
    for (const Member& m : members) {
      if (m.failure || m.called.size() <= summed_ || !m.called[summed_]) return false;
      requests.push_back(&m.called[summed_]->request);
      if (m.called[summed_]->moves) moves.push_back(m.called[summed_]->moves);
    }
    if (!moves.empty()) {
      REQUIRE(moves.size() == members.size());
      if (std::ranges::any_of(members, &Member::is_out)) return false;
      move_next(moves, summed_);
      for (host::MoveSequence* const each : moves) REQUIRE(!each->end_move());
      if (!moves[0]->is_done()) return false;
    } else if (requests[0]->keyed) {
      sum_pairs<Element>(requests);
    } else {
      sum_tensors(requests);
    }
    ++summed_;
    return true;
  }
  /// As in the test of the steps.
  static void sum_tensors(const std::vector<const OpRequest*>& requests) {
    const ElementRange whole{0, requests[0]->element_count};
    std::vector<Element> sums(whole.end);
    for (const OpRequest* request : requests) {
      const ElementRange held = request->held.value_or(whole);
      const auto* input = reinterpret_cast<const Element*>(request->input);
      for (std::uint64_t i = held.begin; i < held.end; ++i) sums[i] += input[i - held.begin];
    }
    for (const OpRequest* request : requests) {
      auto* output = reinterpret_cast<Element*>(request->output);
      for (const ElementRange& range : request->wanted.value_or(std::vector{whole}))
        output = std::copy(sums.begin() + static_cast<std::ptrdiff_t>(range.begin),
                           sums.begin() + static_cast<std::ptrdiff_t>(range.end), output);
    }
  }

  const bool tells_ranks_;
  std::size_t summed_ = 0;  // ops
};

/// One member's side of it.
class Played final : public host::Sums {
 public:
  Played(PlayedJob& job, std::uint16_t number, std::uint16_t of)
      : job_(job), number_(number), of_(of) {
    session_.ranks = of;
    session_.streams = 4;
    session_.block_elements = 16;
    session_.payload_bytes = 1472;
  }

  State state() const override {
    if (me().failure) return me().is_over ? State::kFailed : State::kLeaving;
    if (me().is_leaving) return me().is_over ? State::kLeft : State::kLeaving;
    return me().is_in ? State::kActive : State::kJoining;
  }
  const std::optional<Error>& failure() const override { return me().failure; }
  const std::optional<AbortInfo>& abort_info() const override { return me().abort_info; }
  std::uint32_t job() const override { return 7; }
  Rank rank() const override { return job_.number_of(me()); }
  std::uint16_t ranks() const override { return of_; }
  const Session& session() const override { return session_; }
  std::string waits_for() const override { return "somebody"; }
  std::unique_ptr<Membership> join_pair(const Pair&, Time) override { return nullptr; }

  OpNumber submit(const OpRequest& request, std::span<const std::uint64_t>, Time) override {
    return submit(PlayedJob::Called{.request = request});
  }
  OpNumber submit(const OpRequest& request, std::vector<host::Part>, Time) override {
    return submit(PlayedJob::Called{.request = request});
  }
  OpNumber submit(host::MoveSequence& moves, Time) override {
    return submit(PlayedJob::Called{.moves = &moves});
  }
  void set_timeout(OpNumber, const OpTimeout&) override {}
  std::vector<Completion> take_completions() override {
    return std::exchange(me().completions, {});
  }
  bool has_completions() const override { return !me().completions.empty(); }
  void notify_begun(bool is_wanted) override { notifies_begun_ = is_wanted; }
  std::vector<OpNumber> take_begun() override { return std::exchange(begun_, {}); }
  bool has_begun() const override { return !begun_.empty(); }
  RankSet awaited(OpNumber) const override { return {}; }
  RankSet awaited() const override { return {}; }
  double progress(OpNumber) const override { return 0; }
  void leave(Time, Departure) override {
    if (!me().failure) me().is_leaving = true;
  }
  void abort(const Error&, const std::optional<AbortInfo>& cause, Time) override {
    if (!me().failure && !me().is_over) job_.abort(me(), cause.value());
  }
  bool on_time(Time) override { return false; }
  bool arm(net::RxEvents&) override { return true; }
  const Counters& counters() const override { return counters_; }
  void count_on(const Counters&) override {}

  PlayedJob::Member& me() const { return job_.members[number_]; }

 private:
  OpNumber submit(const PlayedJob::Called& called) {
    const OpNumber op = me().called.size();
    if (state() == State::kActive) {
      me().called.emplace_back(called);
      if (notifies_begun_) begun_.push_back(op);
    } else {
      REQUIRE(me().failure);
      me().called.emplace_back();
      me().completions.push_back({.op = op, .statistics = {}, .error = me().failure});
    }
    return op;
  }

  PlayedJob& job_;
  const std::uint16_t number_, of_;
  bool notifies_begun_ = false;
  std::vector<OpNumber> begun_;
  Session session_;
  Counters counters_;
};

constexpr std::size_t kInFlight = 10;  // ops of a rank

/// A tensor, or pairs of keys and what the tensor has for them.
struct CalledOp {
  std::vector<Element> tensor;
  std::vector<std::uint64_t> keys = {};
  KeyedSums sums = {};
};

/// Of which a rank has called so many ops, and keeps their tensors.
struct RankState {
  std::unique_ptr<Hierarchy> membership = {};
  std::deque<CalledOp> ops = {};
  std::size_t ended = 0;
  bool is_dead = false;
  bool may_call = true;
};

/// So that tensors are of one chunk to many.
constexpr std::uint64_t kMinChunkOfRail = 64;

class Cluster {
 public:
  Cluster(Random& random, std::uint16_t ranks, std::vector<std::uint64_t> host_of)
      : random_(random), placement_(host_of), ranks_(ranks) {
    std::vector<Rank> all;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) all.push_back(Rank{rank});
    whole_ = &jobs_.emplace_back(all, true);
    for (std::uint16_t host = 0; host < placement_.hosts(); ++host) {
      gathers_.push_back(&jobs_.emplace_back(placement_.ranks_of(host), true));
      spreads_.push_back(&jobs_.emplace_back(placement_.ranks_of(host), true));
    }
    for (std::uint16_t rail = 0; rail < placement_.rails(); ++rail)
      rails_.push_back(&jobs_.emplace_back(placement_.rail(rail), false));
    for (auto& member : whole_->members) member.is_in = true;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) join(rank);
  }

  /// One thing that may happen.
  void turn(std::size_t ops) {
    now_ += 10us;  // so that messages arrive well before any time-out
    jobs_[random_() % jobs_.size()].turn(random_);
    const auto rank = static_cast<std::uint16_t>(random_() % ranks_.size());
    RankState& state = ranks_[rank];
    if (state.is_dead) return;
    Hierarchy& membership = *state.membership;
    membership.on_time(now_);
    if (state.may_call && state.ops.size() < std::min(ops, state.ended + kInFlight) &&
        membership.state() != Membership::State::kJoining)
      call(rank);
    for (const Completion& completion : membership.take_completions()) {
      REQUIRE(completion.op == state.ended);
      if (!completion.error) REQUIRE(is_right(state.ops[state.ended], state.ended));
      ++state.ended;
      errors_of_[rank] = completion.error;
    }
  }

  void call(std::uint16_t rank) {
    RankState& state = ranks_[rank];
    const std::size_t op = state.ops.size();
    CalledOp& called = state.ops.emplace_back();
    OpRequest request;
    request.type = ElementType::kInt32;
    if (op % 4 == 3) request.reduction = Reduction::kAverage;  // by all; nobody divides here
    const std::array<std::uint64_t, 1> counts{elements_of(op)};
    for (std::uint64_t i = 0; i < counts[0]; ++i) {
      if (is_of_pairs(op) && !has_key(op, i, rank)) continue;
      if (is_of_pairs(op)) called.keys.push_back(i);
      called.tensor.push_back(element(op, i, rank));
    }
    if (is_of_pairs(op)) {
      request.collective = wire::Collective::kSparseAllReduce;
      request.keyed = {.keys = called.keys,
                       .rows = reinterpret_cast<const std::byte*>(called.tensor.data()),
                       .key_bound = counts[0],
                       .result_bytes = std::size_t{1} << 30,
                       .sums = &called.sums};
    } else {
      lay_out(request, {rank, static_cast<std::uint16_t>(ranks_.size())}, counts);
      request.output = reinterpret_cast<std::byte*>(called.tensor.data());
      request.input = request.output;
    }
    REQUIRE(state.membership->submit(request, counts, now_) == op);
  }

  void wait(Duration time) { now_ += time; }
  void kill(std::uint16_t rank) {
    ranks_[rank].is_dead = true;
    for (PlayedJob& job : jobs_)
      for (PlayedJob::Member& member : job.members)
        // The aggregators notice in all their jobs; of a rail nobody else would say who.
        if (member.rank == Rank{rank}) job.die(member, true);
  }
  /// Its rail finds that an op failed, which has this number there.
  void fail_rail(std::uint16_t rank, OpNumber op) {
    const std::uint16_t host = placement_.host_of(Rank{rank});
    rails_[placement_.local_rank_of(Rank{rank})]->members[host].told = {
        .reason = wire::AbortReason::kOpTimedOut, .rank_a = Rank{host}, .value_a = 7, .op = op};
  }
  void leave(std::uint16_t rank) { ranks_[rank].membership->leave(now_, Departure::kByChoice); }
  bool is_over() const {
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank)
      if (!is_over(rank)) return false;
    return true;
  }
  bool is_over(std::uint16_t rank) const {
    return ranks_[rank].is_dead || ranks_[rank].membership->over();
  }
  RankState& rank(std::uint16_t rank) { return ranks_[rank]; }
  const std::optional<Error>& last_error(std::uint16_t rank) { return errors_of_[rank]; }

 private:
  void join(std::uint16_t rank) {
    const std::uint16_t host = placement_.host_of(Rank{rank});
    const std::uint16_t local = placement_.local_rank_of(Rank{rank});
    const auto all = static_cast<std::uint16_t>(ranks_.size());
    const auto part = [](PlayedJob& job, std::uint16_t number) {
      return std::make_unique<Played>(job, number, static_cast<std::uint16_t>(job.members.size()));
    };
    hierarchy::Parts parts;
    parts.gather = part(*gathers_[host], local);
    if (placement_.hosts() > 1) parts.spread = part(*spreads_[host], local);
    if (placement_.hosts() > 1 && local < placement_.rails())
      parts.rail = part(*rails_[local], host);
    ranks_[rank].membership = std::make_unique<Hierarchy>(
        JobLabel{.job = "7"}, placement_, std::make_unique<Played>(*whole_, rank, all),
        std::move(parts), kMinChunkOfRail);
  }

  static std::uint64_t elements_of(std::size_t op) { return 1 + op * 37 % 200; }
  static Element element(std::size_t op, std::uint64_t i, std::uint16_t rank) {
    return static_cast<Element>(op * 101 + i * 7 + rank * 1009);
  }
  static bool is_of_pairs(std::size_t op) { return op % 3 == 1; }
  static bool has_key(std::size_t op, std::uint64_t i, std::uint16_t rank) {
    return (op + i * 7 + rank) % 5 != 0;
  }
  struct Sums {
    std::vector<Element> tensor = {};
    SumsByKey<Element> pairs = {};
  };
  Sums sums_of(std::size_t op) const {
    Sums sums{.tensor = std::vector<Element>(elements_of(op))};
    for (std::uint64_t i = 0; i < sums.tensor.size(); ++i)
      for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
        const bool has = !is_of_pairs(op) || has_key(op, i, rank);
        if (has) sums.tensor[i] += element(op, i, rank);
        if (has && is_of_pairs(op)) sums.pairs[i] = {sums.tensor[i]};
      }
    return sums;
  }
  bool is_right(const CalledOp& called, std::size_t op) {
    while (sums_.size() <= op) sums_.push_back(sums_of(sums_.size()));
    return is_of_pairs(op) ? are(called.sums, 1, sums_[op].pairs)
                           : called.tensor == sums_[op].tensor;
  }

  Random& random_;
  const hierarchy::Placement placement_;
  std::deque<PlayedJob> jobs_;
  PlayedJob* whole_ = nullptr;
  std::vector<PlayedJob*> gathers_, spreads_, rails_;
  std::vector<RankState> ranks_;
  std::vector<Sums> sums_;  ///< of each op, the same on all ranks
  std::array<std::optional<Error>, 16> errors_of_;
  Time now_ = Time{} + 1h;
};

Cluster draw(Random& random, std::uint16_t ranks) {
  std::vector<std::uint64_t> host_of(ranks);
  const std::uint64_t hosts = 1 + random() % 3;
  for (std::uint64_t& host : host_of) host = 1 + random() % hosts;
  return {random, ranks, host_of};
}

constexpr int kTurns = 400'000;  // more than any of these takes

TEST_CASE("ops over hosts end in their order, and all leave") {
  for (int seed = 0; seed < test::rounds(150); ++seed) {
    CAPTURE(seed);
    Random random(static_cast<std::uint64_t>(seed));
    const auto ranks = static_cast<std::uint16_t>(1 + random() % 8);
    const std::size_t ops = 1 + random() % 12;
    Cluster cluster = draw(random, ranks);
    std::vector<bool> has_left(ranks);
    int turns = 0;
    for (; turns < kTurns && !cluster.is_over(); ++turns) {
      cluster.turn(ops);
      for (std::uint16_t rank = 0; rank < ranks; ++rank)
        if (cluster.rank(rank).ended == ops && !has_left[rank]) {
          has_left[rank] = true;
          cluster.leave(rank);
        }
    }
    REQUIRE(turns < kTurns);
    for (std::uint16_t rank = 0; rank < ranks; ++rank)
      REQUIRE(!cluster.rank(rank).membership->failure());
  }
}

TEST_CASE("a rank that dies is named on all hosts, whatever it was doing") {
  for (int seed = 0; seed < test::rounds(300); ++seed) {
    CAPTURE(seed);
    Random random(static_cast<std::uint64_t>(seed));
    const auto ranks = static_cast<std::uint16_t>(2 + random() % 7);
    const auto dead = static_cast<std::uint16_t>(random() % ranks);
    Cluster cluster = draw(random, ranks);
    const int dies_at = static_cast<int>(random() % 2000);
    int turns = 0;
    for (; turns < kTurns && !cluster.is_over(); ++turns) {
      if (turns == dies_at) cluster.kill(dead);
      cluster.turn(1'000'000);
    }
    REQUIRE(turns < kTurns);
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      if (rank == dead) continue;
      RankState& state = cluster.rank(rank);
      REQUIRE(state.membership->failure());
      CAPTURE(rank, dead, std::string(state.membership->failure()->what()));
      CHECK(state.membership->failure()->rank() == dead);
      CHECK(state.ended == state.ops.size());
      const std::size_t called = state.ops.size();
      cluster.turn(0);
      CHECK(cluster.rank(rank).ops.size() == called);
      if (called > 0) CHECK(cluster.last_error(rank).has_value());
    }
  }
}

TEST_CASE("an error names an op by its caller's number, whatever chunks came before it") {
  Random random(37);
  Cluster cluster(random, 2, {1, 2});
  Hierarchy& membership = *cluster.rank(0).membership;
  while (membership.state() != Membership::State::kActive) cluster.turn(0);
  for (int op = 0; op < 6; ++op) cluster.call(0);  // of 1, 1, 4, 1, 1 and 8 chunks
  cluster.fail_rail(0, 10);
  while (!membership.failure()) cluster.turn(0);
  CHECK(membership.abort_info()->op == 5);
  CHECK_THAT(membership.failure()->what(), Catch::Contains("op 5"));
}

TEST_CASE("ops are told that have begun, if that is asked for") {
  for (const std::vector<std::uint64_t>& host_of : {std::vector<std::uint64_t>{1, 1}, {1, 2}}) {
    Random random(36);
    Cluster cluster(random, 2, host_of);
    Hierarchy& membership = *cluster.rank(0).membership;
    while (membership.state() != Membership::State::kActive) cluster.turn(0);
    cluster.call(0);
    CHECK(!membership.has_begun());
    membership.notify_begun(true);
    cluster.call(0);
    CHECK(membership.take_begun() == std::vector<OpNumber>{1});
  }
}

TEST_CASE(
    "of an op that this rank has not called it awaits the number, and names its next one at last") {
  Random random(38);
  Cluster cluster(random, 2, {1, 2});
  Hierarchy& membership = *cluster.rank(0).membership;
  while (membership.state() != Membership::State::kActive) cluster.turn(0);
  for (int op = 0; op < 3; ++op) cluster.call(0);  // of 1, 1 and 4 chunks
  cluster.fail_rail(0, 6);
  while (!membership.failure()) {  // for as long as another rank's reason may come
    cluster.turn(0);
    cluster.wait(1ms);
  }
  CHECK(membership.abort_info()->op == 3);
}

TEST_CASE("an op that is called while its rank leaves fails at once") {
  Random random(36);
  Cluster cluster(random, 2, {1, 2});
  Hierarchy& membership = *cluster.rank(0).membership;
  while (membership.state() != Membership::State::kActive) cluster.turn(0);
  cluster.leave(0);
  cluster.call(0);
  const std::vector<Completion> completions = membership.take_completions();
  REQUIRE(completions.size() == 1);
  CHECK(completions[0].op == 0);
  REQUIRE(completions[0].error);
  CHECK(completions[0].error->code() == ErrorCode::kAborted);
  CHECK(membership.progress(0) == 1);
  CHECK(membership.awaited(0).empty());
  while (!membership.over()) cluster.turn(0);
  CHECK(!membership.failure());
}

}  // namespace

}  // namespace hierarchy_membership_tests
