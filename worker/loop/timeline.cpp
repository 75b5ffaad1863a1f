#include "worker/loop/timeline.hpp"

#include <array>
#include <utility>

#include <unistd.h>

namespace sluice {
namespace {

using wire::Collective;

void add_error(TimelineFacts& facts, const Error& error) {
  facts.add("code", name(error.code())).add("error", error.what());
  if (error.rank()) facts.add("rank", *error.rank());
  if (error.op()) facts.add("op", *error.op());
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

void TimelineFacts::add_name(std::string_view name) {
  if (!json_.empty()) json_ += ',';
  json_.append(json_text(name)).push_back(':');
}

TimelineFacts& TimelineFacts::add(std::string_view name, std::string_view text) {
  add_name(name);
  json_ += json_text(text);
  return *this;
}

TimelineFacts& TimelineFacts::add(std::string_view name, std::uint64_t number) {
  add_name(name);
  json_ += std::to_string(number);
  return *this;
}

// --------------------------------------------------------------------------------- begin and end
void Timeline::check_start(const std::string& file) const {
  if (file.empty())
    throw Error(ErrorCode::kInvalidArgument, "the timeline's file has an empty name");
  if (is_started())
    throw Error(ErrorCode::kInvalidArgument,
                "there is a timeline already: '" + (file_ ? file_->path() : waits_for_rank_) + "'");
}

std::unique_ptr<TimelineFile> Timeline::open(const std::string& file, std::uint16_t rank) const {
  return std::make_unique<TimelineFile>(
      timeline_path(file, rank),
      [logger = logger_](const std::string& why) { logger->error("{}; ops go on", why); });
}

void Timeline::start(const std::string& file, std::optional<std::uint16_t> rank,
                     std::unique_ptr<TimelineFile> opened, Time now) {
  check_start(file);
  if (rank)
    begin(std::move(opened), *rank, now);
  else
    waits_for_rank_ = file;
}

void Timeline::joins_as(std::uint16_t rank, Time now) {
  if (waits_for_rank_.empty()) return;
  begin(open(std::exchange(waits_for_rank_, {}), rank), rank, now);
}

void Timeline::begin(std::unique_ptr<TimelineFile> file, std::uint16_t rank, Time now) {
  file_ = std::move(file);
  rank_ = rank;
  first_ = next_;
  lost_ = 0;
  named_.clear();
  epoch_ = std::chrono::system_clock::now().time_since_epoch() - now.time_since_epoch();
  const auto process = static_cast<std::uint64_t>(getpid());
  add(head('M', "process_name", now) + ",\"args\":{" +
          TimelineFacts()
              .add("name", "rank " + std::to_string(rank) + " (" + host_name() + ", process " +
                               std::to_string(process) + ")")
              .json() +
          "}}",
      now);
  add(head('M', "process_sort_index", now) + ",\"args\":{\"sort_index\":" + std::to_string(rank) +
          "}}",
      now);
}

Timeline::Stopped Timeline::stop(Time now) {
  waits_for_rank_.clear();
  return {std::move(file_), lost_ == 0 ? std::string() : lost_event(now)};
}

// ---------------------------------------------------------------------------------------- events
/// An event without the closing bracket.
std::string Timeline::head(char phase, std::string_view name, Time at) const {
  const auto ns = (at.time_since_epoch() + epoch_).count();
  std::string fraction = std::to_string(ns % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return "{\"name\":" + json_text(name) + ",\"ph\":\"" + phase +
         "\",\"pid\":" + std::to_string(rank_) + ",\"ts\":" + std::to_string(ns / 1000) + "." +
         fraction;
}

std::string Timeline::lost_event(Time at) const {
  return head('i', "events lost", at) +
         ",\"tid\":0,\"s\":\"p\",\"args\":{\"count\":" + std::to_string(lost_) + "}}";
}

void Timeline::add(std::string_view event, Time at) {
  if (lost_ != 0 && file_->add(lost_event(at))) lost_ = 0;
  if (lost_ != 0 || !file_->add(event)) ++lost_;
}

void Timeline::span(char phase, const TimelineJob& job, const TimelineOp& op, std::string_view name,
                    const TimelineFacts& facts, Time at) {
  add(head(phase, name, at) + ",\"cat\":\"op\",\"id\":" + std::to_string(op.id) +
          ",\"tid\":" + std::to_string(job.id) + ",\"args\":{" + facts.json() + "}}",
      at);
}

/// Names the job's row, before its first event in the file.
void Timeline::name_row(const TimelineJob& job, Time at) {
  if (!named_.insert(job.id).second) return;
  add(head('M', "thread_name", at) + ",\"tid\":" + std::to_string(job.id) + ",\"args\":{" +
          TimelineFacts().add("name", job.name).json() + "}}",
      at);
}

void Timeline::instant(const TimelineJob& job, std::string_view name, const TimelineFacts& facts,
                       Time at) {
  name_row(job, at);
  add(head('i', name, at) + ",\"cat\":\"job\",\"s\":\"t\",\"tid\":" + std::to_string(job.id) +
          ",\"args\":{" + facts.json() + "}}",
      at);
}

TimelineOp Timeline::called(const TimelineJob& job, std::string_view name,
                            const TimelineFacts& facts, Time at) {
  name_row(job, at);
  const TimelineOp op{.id = next_++, .name = name};
  TimelineFacts all = facts;
  span('b', job, op, name, all.add("job", job.name), at);
  span('b', job, op, "queued", {}, at);
  return op;
}

void Timeline::runs(const TimelineJob& job, TimelineOp& op, Time at) {
  if (!has(op) || std::exchange(op.runs, true)) return;  // an op may begin a second time
  span('e', job, op, "queued", {}, at);
  span('b', job, op, "running", {}, at);
}

void Timeline::ended(const TimelineJob& job, const TimelineOp& op, const OpStatistics& statistics,
                     const std::optional<Error>& error, Time at) {
  if (!has(op)) return;
  TimelineFacts facts;
  if (error) {
    add_error(facts, *error);
    TimelineFacts more;
    add_error(more.add("call", op.name), *error);
    instant(job, "op failed", more, at);
  } else {
    facts.add("blocks", statistics.blocks)
        .add("blocks_sent", statistics.blocks_sent)
        .add("blocks_received", statistics.blocks_received)
        .add("bytes_sent", statistics.bytes_sent)
        .add("bytes_received", statistics.bytes_received)
        .add("retransmissions", statistics.retransmissions);
  }
  span('e', job, op, op.runs ? "running" : "queued", {}, at);
  span('e', job, op, op.name, facts, at);
}

void JobTimeline::failed(std::string_view name, const Error& error, Time at) {
  TimelineFacts facts;
  add_error(facts, error);
  instant(name, facts, at);
}

TimelineFacts JobTimeline::facts_of(const worker::OpRequest& request,
                                    std::optional<std::uint16_t> peer) {
  std::uint64_t elements = request.element_count;
  TimelineFacts facts;
  if (request.keyed) {
    elements = request.keyed->keys.size() * request.keyed->row_elements;
    facts.add("keys", request.keyed->keys.size());
  }
  facts.add("elements", elements)
      .add("bytes", elements * element_bytes(request.type))
      .add("dtype", name(request.type))
      .add("tag", request.tag);
  const bool reduces =
      !wire::moves(request.collective) && request.collective != Collective::kBarrier;
  if (reduces) facts.add("reduction", name(request.reduction));
  if (request.is_encoded()) facts.add("encoding", name(request.encoding));
  if (peer)
    facts.add("peer", *peer);
  else if (request.collective == Collective::kBroadcast ||
           request.collective == Collective::kReduce || request.collective == Collective::kGather ||
           request.collective == Collective::kScatter)
    facts.add("root", request.root);
  return facts;
}

}  // namespace sluice
