// What a process's ops do, as a timeline for Perfetto and chrome://tracing (setting `timeline`).
// Times are wall-clock times, so that the files of several ranks and those of torch.profiler fit
// together.
//
// An op is a span from its call to its end. In it are two spans: "queued" until its first round
// begins, and "running" after that. A span is written when it begins, so the file of a process that
// died shows what it was doing. The caller of each function holds the loop's lock. While there is
// no timeline, a call costs one test of a pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/time.hpp"
#include "common/log/logger.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/loop/timeline_file.hpp"

namespace sluice {

/// `"name":value` pairs of JSON.
class TimelineFacts {
 public:
  TimelineFacts& add(std::string_view name, std::string_view text);
  TimelineFacts& add(std::string_view name, std::uint64_t number);
  const std::string& json() const { return json_; }

 private:
  void add_name(std::string_view name);

  std::string json_;
};

/// One job: a row of the timeline.
struct TimelineJob {
  std::uint32_t id = 0;
  std::string name;  ///< "job 7, rank 0 of 4"
};

/// An op that is recorded.
struct TimelineOp {
  std::uint64_t id = 0;  ///< 0: it is not recorded
  std::string_view name;
  bool runs = false;
};

class Timeline {
 public:
  explicit Timeline(std::shared_ptr<spdlog::logger> logger) : logger_(std::move(logger)) {}

  /// Throws kInvalidArgument unless start() may be called.
  void check_start(const std::string& file) const;
  /// Opens a file. The caller does not hold the lock, as disks may be slow. Throws kUnavailable.
  std::unique_ptr<TimelineFile> open(const std::string& file, std::uint16_t rank) const;
  /// Starts the timeline. `rank` is this process's rank, from which the name of the open file was
  /// made. If it is empty, the rank in the first job is used. Throws as check_start().
  void start(const std::string& file, std::optional<std::uint16_t> rank,
             std::unique_ptr<TimelineFile> opened, Time now);
  /// A job is joined as this rank. Opens the file if it waits for the rank. Throws kUnavailable.
  void joins_as(std::uint16_t rank, Time now);
  /// What was open, for a caller that may wait until it is closed; null if there was nothing.
  struct Stopped {
    std::unique_ptr<TimelineFile> file;
    std::string last;  ///< the last line, for closing the file
  };
  Stopped stop(Time now);

  bool is_started() const { return file_ != nullptr || !waits_for_rank_.empty(); }
  bool is_on() const { return file_ != nullptr; }

  // Call it only while the timeline is on.
  TimelineOp called(const TimelineJob& job, std::string_view name, const TimelineFacts& facts,
                    Time at);
  void runs(const TimelineJob& job, TimelineOp& op, Time at);
  void ended(const TimelineJob& job, const TimelineOp& op, const OpStatistics& statistics,
             const std::optional<Error>& error, Time at);
  void instant(const TimelineJob& job, std::string_view name, const TimelineFacts& facts, Time at);

 private:
  void begin(std::unique_ptr<TimelineFile> file, std::uint16_t rank, Time now);
  bool has(const TimelineOp& op) const { return op.id >= first_ && op.id != 0; }
  void name_row(const TimelineJob& job, Time at);
  void span(char phase, const TimelineJob& job, const TimelineOp& op, std::string_view name,
            const TimelineFacts& facts, Time at);
  void add(std::string_view event, Time at);
  std::string head(char phase, std::string_view name, Time at) const;
  std::string lost_event(Time at) const;

  const std::shared_ptr<spdlog::logger> logger_;
  std::string waits_for_rank_;  // the file name as it was given
  std::unique_ptr<TimelineFile> file_;
  std::uint16_t rank_ = 0;
  Duration epoch_{};               // from our clock to the wall clock
  std::uint64_t next_ = 1;         // ids of ops; none is used twice
  std::uint64_t first_ = 1;        // ops with smaller ids began in another file, or in none
  std::uint64_t lost_ = 0;         // events, since the last report
  std::set<std::uint32_t> named_;  // jobs whose row has a name
};

/// The timeline as one job records in it.
class JobTimeline {
 public:
  JobTimeline(Timeline& timeline, TimelineJob job) : timeline_(timeline), job_(std::move(job)) {}

  bool is_on() const { return timeline_.is_on(); }
  TimelineOp called(std::string_view name, const worker::OpRequest& request, Time at,
                    std::optional<std::uint16_t> peer = {}) {
    return is_on() ? timeline_.called(job_, name, facts_of(request, peer), at) : TimelineOp{};
  }
  void runs(TimelineOp& op, Time at) {
    if (is_on()) timeline_.runs(job_, op, at);
  }
  void ended(const TimelineOp& op, const OpStatistics& statistics,
             const std::optional<Error>& error, Time at) {
    if (is_on()) timeline_.ended(job_, op, statistics, error, at);
  }
  void instant(std::string_view name, const TimelineFacts& facts, Time at) {
    if (is_on()) timeline_.instant(job_, name, facts, at);
  }
  void failed(std::string_view name, const Error& error, Time at);

 private:
  static TimelineFacts facts_of(const worker::OpRequest& request,
                                std::optional<std::uint16_t> peer);

  Timeline& timeline_;
  const TimelineJob job_;
};

}  // namespace sluice
