// What an aggregator tells operators of a job: counters, and whom it waits for.
#include "aggregator/engine/job_figures.hpp"

#include <map>
#include <numeric>
#include <string_view>

#include "tests/unit/aggregator_bench.hpp"
#include "tests/unit/catch.hpp"

namespace job_figures_tests {

using namespace sluice;
using namespace sluice::parts;
using aggregator::JobCounters;
using aggregator::JobFigures;

namespace {

JobFigures only_job(Bench& bench) {
  const auto jobs = bench.engine().figures_of_jobs(bench.now);
  REQUIRE(jobs.size() == 1);
  return jobs[0];
}

RankSet of(std::initializer_list<std::uint16_t> ranks) {
  RankSet set;
  for (const std::uint16_t r : ranks) set.insert(Rank{r});
  return set;
}

}  // namespace

TEST_CASE("a latency falls into the bucket of the next power of two") {
  LatencyHistogram histogram;
  const auto bucket_of = [&](Duration took) {
    LatencyHistogram one;
    one.observe(took);
    histogram += one;
    for (std::size_t i = 0; i < one.counts().size(); ++i)
      if (one.counts()[i] != 0) return i;
    return one.counts().size();
  };
  CHECK(bucket_of(0ns) == 0);
  CHECK(bucket_of(1us) == 0);
  CHECK(bucket_of(1us + 1ns) == 1);
  CHECK(bucket_of(2us) == 1);
  CHECK(bucket_of(3us) == 2);
  for (std::size_t i = 0; i < LatencyHistogram::kBuckets; ++i) {
    CHECK(bucket_of(LatencyHistogram::upper_bound(i)) == i);
    CHECK(bucket_of(LatencyHistogram::upper_bound(i) + 1ns) == i + 1);
  }
  CHECK(bucket_of(Duration::max() / 1000) == LatencyHistogram::kBuckets);
  CHECK(std::accumulate(histogram.counts().begin(), histogram.counts().end(), std::uint64_t{0}) ==
        6 + 2 * LatencyHistogram::kBuckets);
}

TEST_CASE("a job that forms is known by who has joined") {
  Bench bench(3);
  bench.join(1, 7);
  const JobFigures job = only_job(bench);
  CHECK(!job.active);
  CHECK(job.session.job == kJob);
  CHECK(job.session.ranks == 3);
  CHECK(job.present == of({1}));
}

TEST_CASE("a job's counters tell how dense its tensors are, and what a round takes") {
  Bench bench(2, 8);
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  bench.now += 3ms;
  JobFigures job = only_job(bench);
  CHECK(job.active);
  CHECK(job.present == of({0, 1}));
  CHECK(job.waited_for == of({1}));
  CHECK(job.waiting == 3ms);

  bench.give(1, bench.long_op(1, 0, false));
  const std::uint64_t columns = bench.geometry(1).columns;
  job = only_job(bench);  // of the others all blocks are passed, of column 0 the first
  CHECK(job.counters.blocks_dense == 5 * (columns - 1) + 1);
  CHECK(job.counters.blocks_contributed == 1);
  for (std::uint64_t round = 1; round < 5; ++round) bench.give(0, bench.long_op(0, round, true));
  job = only_job(bench);
  const std::uint64_t block_bytes = kBlock * sizeof(float);
  const JobCounters& counters = job.counters;
  CHECK(job.waited_for.empty());
  CHECK(job.waiting == 0ns);
  CHECK(counters.contributions == 6);
  CHECK(counters.rounds == 5);
  CHECK(counters.blocks_contributed == 5);
  CHECK(counters.bytes_contributed == 5 * block_bytes);
  CHECK(counters.blocks_summed == 5);
  CHECK(counters.bytes_summed == 5 * block_bytes);
  CHECK(counters.blocks_dense == 5 * columns);
  CHECK(counters.bytes_dense == 5 * columns * block_bytes);
  CHECK(counters.received_bytes > counters.bytes_contributed);
  CHECK(counters.sent_bytes > 2 * counters.bytes_summed);
  CHECK(counters.round_time.sum() == 3ms);
  CHECK(counters.round_time.counts()[12] == 1);  // 2049 to 4096 us
  CHECK(counters.round_time.counts()[0] == 4);
  CHECK(counters.contributions == bench.engine().counters().contributions);
}

TEST_CASE("the last block of a tensor counts as many bytes as it has") {
  Bench bench(1);
  bench.form();
  const Geometry geometry =
      Geometry::make(kBlock + 1, ElementType::kFloat32, kBlock, 508, bench.streams, 0);
  bench.give(0, block_packet<wire::Data>(kJob, wire::shape_of(geometry), true,
                                         {{0, kNoBlock.value, std::vector<float>(kBlock, 1)},
                                          {1, kNoBlock.value, std::vector<float>(1, 1)}},
                                         [&](wire::Data& fixed, wire::Descriptor*) {
                                           fixed.member = bench.member(0, fixed.member);
                                           fixed.flags = wire::kDataOpening;
                                         }));
  const JobCounters counters = only_job(bench).counters;
  CHECK(counters.blocks_dense == 2);
  CHECK(counters.bytes_dense == (kBlock + 1) * sizeof(float));
  CHECK(counters.bytes_contributed == counters.bytes_dense);
  CHECK(counters.bytes_summed == counters.bytes_dense);
}

TEST_CASE("a job that forms again begins at 0") {
  Bench bench(2);
  bench.form();
  bench.short_op_of_all();
  CHECK(only_job(bench).counters.rounds == 1);
  bench.leave(0, true);
  CHECK(bench.engine().figures_of_jobs(bench.now).empty());
  for (unsigned r = 0; r < 2; ++r) bench.join(r, 2000 + r);
  CHECK(only_job(bench).active);
  CHECK(only_job(bench).counters.rounds == 0);
}

TEST_CASE("a rank's silence is told, and only of who is there") {
  Bench bench(2);
  bench.form();
  bench.now += 100ms;
  bench.keep_alive(1, 1);
  const JobFigures job = only_job(bench);
  CHECK(job.most_silent == Rank{0});
  CHECK(job.silence == 100ms);
}

TEST_CASE("lanes' figures of a job add up") {
  JobFigures first;
  first.active = true;
  first.session.job = 3;
  first.present = of({0, 1});
  first.waited_for = of({1});
  first.waiting = 5ms;
  first.most_silent = Rank{1};
  first.silence = 7ms;
  first.counters.rounds = 2;
  JobFigures second = first;
  second.waited_for = of({0});
  second.waiting = 6ms;
  second.silence = 2ms;
  first += second;
  CHECK(first.waited_for == of({0, 1}));
  CHECK(first.waiting == 6ms);
  CHECK(first.silence == 2ms);
  CHECK(first.counters.rounds == 4);
}

// --- what streams wait for -----------------------------------------------------------------------

namespace {

using Waited = std::map<std::string_view, Duration>;

/// Only what is not 0.
Waited waited(Bench& bench) {
  Waited times;
  only_job(bench).counters.waited.for_each([&](std::string_view cause, Duration time) {
    if (time != 0ns) times[cause] = time;
  });
  return times;
}

}  // namespace

TEST_CASE("a stream without an op waits for none of its ranks") {
  Bench bench;
  bench.form();
  bench.now += 5ms;
  CHECK(waited(bench) == Waited{{"no_op", 5ms}});
  bench.short_op_of_all();
  bench.now += 2ms;
  CHECK(waited(bench) == Waited{{"no_op", 7ms}});
}

TEST_CASE("a round waits for a rank that is slow, and also while it has not ended") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 3ms;
  CHECK(waited(bench) == Waited{{"contribution", 3ms}});
  bench.now += 1ms;
  bench.give(1, bench.short_op(1, 0, 1, 0));
  CHECK(waited(bench) == Waited{{"contribution", 4ms}});
}

TEST_CASE("between two rounds of an op a stream waits for the next one") {
  Bench bench(2, 8);
  bench.form();
  for (unsigned r = 0; r < 2; ++r) bench.give(r, bench.long_op(r, 0, r == 0));
  bench.now += 1ms;
  bench.give(0, bench.long_op(0, 1, true));
  CHECK(waited(bench) == Waited{{"next_round", 1ms}});
}

TEST_CASE("a contribution that is sent again was waited for as it was lost") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 3ms;
  bench.give(1, bench.short_op(1, 0, 1, 0, true));
  CHECK(waited(bench) == Waited{{"retransmission", 3ms}});
}

TEST_CASE("a lost contribution that another rank is later than delays nothing") {
  Bench bench(3);
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 3ms;
  bench.give(1, bench.short_op(1, 0, 1, 0, true));
  bench.now += 1ms;
  CHECK(waited(bench) == Waited{{"contribution", 4ms}});
  bench.give(2, bench.short_op(2, 0, 1, 0));
  bench.now += 1ms;
  CHECK(waited(bench) == Waited{{"contribution", 4ms}, {"no_op", 1ms}});
}

TEST_CASE("who lacked a result that was lost contributes late to the next round") {
  Bench bench(2, 8);
  bench.form();
  for (unsigned r = 0; r < 2; ++r) bench.give(r, bench.long_op(r, 0, r == 0));
  bench.now += 2ms;
  CHECK(of_kind<wire::Result>(bench.probe(0, 0)).size() == 1);
  bench.now += 1ms;
  bench.give(0, bench.long_op(0, 1, true));
  CHECK(waited(bench) == Waited{{"retransmission", 3ms}});
  bench.now += 1ms;
  bench.give(0, bench.long_op(0, 2, true));
  CHECK(waited(bench) == Waited{{"retransmission", 3ms}, {"next_round", 1ms}});
}

TEST_CASE("a round waits for the acknowledgement of a rank that is far behind") {
  Bench bench(2, 2);
  bench.form();
  for (unsigned r = 0; r < 2; ++r) bench.give(r, bench.long_op(r, 0, r == 0));
  bench.give(0, bench.long_op(0, 1, true));
  bench.give(0, bench.long_op(0, 2, true));
  bench.now += 4ms;
  bench.ack(1, 1);
  CHECK(waited(bench) == Waited{{"acknowledgement", 4ms}});
}

TEST_CASE("a round waits for packet memory") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 1ms;
  bench.sink.pool->dry = true;
  bench.give(1, bench.short_op(1, 0, 1, 0));
  bench.now += 6ms;
  bench.sink.pool->dry = false;
  bench.pass(0ns);
  CHECK(waited(bench) == Waited{{"contribution", 1ms}, {"packet_memory", 6ms}});
}

TEST_CASE("what a job does over again is time of its recovery") {
  Bench bench(2, 4);
  bench.resume();
  bench.now += 1ms;
  bench.sync(0, 1);
  bench.now += 1ms;
  bench.sync(1, 0);
  bench.now += 1ms;
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 1ms;
  bench.give(1, bench.short_op(1, 0, 1, 0));
  CHECK(waited(bench) == Waited{{"recovery", 4ms}});
  bench.now += 1ms;
  CHECK(waited(bench) == Waited{{"recovery", 4ms}, {"no_op", 1ms}});
}

TEST_CASE("an aggregator that retires lets no rank wait for another one") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 2ms;
  bench.engine().retire(bench.now, bench.sink);
  bench.now += 3ms;
  CHECK(waited(bench) == Waited{{"contribution", 2ms}, {"retirement", 3ms}});
}

TEST_CASE("a pause of the lane is nobody else's wait") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.now += 12ms;
  bench.engine().excuse_pause(10ms);
  bench.give(1, bench.short_op(1, 0, 1, 0));
  CHECK(waited(bench) == Waited{{"contribution", 2ms}, {"pause", 10ms}});
}

}  // namespace job_figures_tests
