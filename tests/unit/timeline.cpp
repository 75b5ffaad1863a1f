// The file of a timeline: its name, its form, and what becomes of it when the disk is slow or full,
// or the process dies.
#include "worker/loop/timeline.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/config/log.hpp"
#include "common/memory/descriptor.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::timeline_tests {
namespace {

using Catch::Contains;
using nlohmann::json;

class Directory {
 public:
  Directory() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "timeline-XXXXXX";
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

json events_of(const std::string& path) {
  return json::parse(text_of(path));
}

/// Of a file whose process did not complete it, as the viewers read it.
json events_begun(const std::string& path) {
  return json::parse(text_of(path) + "]");
}

/// As Progress does it.
void start(Timeline& timeline, const std::string& file, std::optional<std::uint16_t> rank,
           Time now) {
  timeline.check_start(file);
  timeline.start(file, rank, rank ? timeline.open(file, *rank) : nullptr, now);
}

template <class Done>
bool comes(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("a name holds the rank or the process, or the rank is put before its extension") {
  const std::string process = std::to_string(getpid());
  CHECK(timeline_path("/a/trace.json", 3) == "/a/trace.3.json");
  CHECK(timeline_path("trace", 0) == "trace.0");
  CHECK(timeline_path("/a.b/trace", 12) == "/a.b/trace.12");
  CHECK(timeline_path("/a/%r/trace-%r.json", 3) == "/a/3/trace-3.json");
  CHECK(timeline_path("%p.json", 3) == process + ".json");
  CHECK(timeline_path("%r-%p-%x", 3) == "3-" + process + "-%x");
}

TEST_CASE("any text becomes a JSON string") {
  const std::string hostile = std::string("a\"b\\c\n\x01\xff\0", 9) + std::string(5000, '\x02');
  const std::string text = json_text(hostile);
  CHECK_THAT(json::parse(text).get<std::string>(), Contains("a\"b\\c\\n\\x01\\xff\\x00"));
  CHECK(text.size() < 4096);
}

TEST_CASE("a completed file is a JSON array of its events") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  {
    TimelineFile file(path, {});
    for (int i = 0; i < 1000; ++i) REQUIRE(file.add("{\"i\":" + std::to_string(i) + "}"));
    file.close("{\"i\":1000}");
  }
  const json events = events_of(path);
  REQUIRE(events.size() == 1001);
  for (int i = 0; i <= 1000; ++i) CHECK(events[std::size_t(i)]["i"] == i);
  { TimelineFile empty(path, {}); }
  CHECK(events_of(path).empty());
}

TEST_CASE("no event lies across a page's end, where a write may be cut") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  TimelineFile file(path, {});
  for (std::size_t i = 0; i < 80; ++i)
    REQUIRE(file.add("{\"text\":\"" + std::string(i * 37 % 3000, 'x') + "\"}"));
  file.close();
  const std::string text = text_of(path);
  REQUIRE(text.size() > 20 * 4096);
  for (std::size_t end = 4096; end < text.size(); end += 4096)
    CHECK(json::accept(text.substr(0, end) + "]"));
}

TEST_CASE("the file of a killed process is a valid beginning") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    TimelineFile file(path, {});
    for (std::uint64_t i = 0;; ++i)
      if (!file.add("{\"i\":" + std::to_string(i) + "}")) std::this_thread::yield();
  }
  const bool grew = comes([&] {
    return std::filesystem::exists(path) && std::filesystem::file_size(path) > 1'000'000;
  });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  REQUIRE(grew);
  const json events = events_begun(path);
  CHECK(events.size() > 10'000);
  CHECK(events[0]["i"] == 0);
}

TEST_CASE("a path that cannot be written is refused by its name") {
  const Directory directory;
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      TimelineFile file(path, {});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      return error.what();
    }
    return "";
  };
  const std::string nowhere = directory / "none/trace.json";
  CHECK(refusal(nowhere) ==
        "the timeline '" + nowhere + "' cannot be written: No such file or directory");
  CHECK_THAT(refusal(directory / ""), Contains("Is a directory"));
  const std::string pipe = directory / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(refusal(pipe), Contains("No such device"));  // and does not wait
  const std::string path = directory / "trace.json";
  TimelineFile file(path, {});
  REQUIRE(file.add("{}"));
  CHECK_THAT(refusal(path), Contains("another process writes its timeline there"));
  file.close();
  CHECK(events_of(path).size() == 1);
}

TEST_CASE("a child that lives on keeps nobody from writing its killed parent's file again") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  int lives[2];   // the child does until we close our end
  int begins[2];  // and tells that it does
  REQUIRE((pipe(lives) == 0 && pipe(begins) == 0));
  const pid_t parent = fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    close(lives[1]);
    std::optional<TimelineFile> file;
    CHECK_NOTHROW(file.emplace(path, nullptr));
    const pid_t child = file ? fork() : -1;
    if (child < 0) _exit(1);
    while (child > 0) pause();
    char none;
    _exit(write(begins[1], "", 1) == 1 && read(lives[0], &none, 1) == 0 ? 0 : 1);
  }
  close(begins[1]);
  char one;
  CHECK(read(begins[0], &one, 1) == 1);
  kill(parent, SIGKILL);
  CHECK(waitpid(parent, nullptr, 0) == parent);
  CHECK_NOTHROW(TimelineFile(path, {}));
  close(lives[1]);
  CHECK(read(begins[0], &one, 1) == 0);  // the child has lived until now, and ends
  close(lives[0]);
  close(begins[0]);
}

TEST_CASE("a file that was closed can be written again at once") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  TimelineFile file(path, {});
  std::optional<memory::Descriptor> of_child;  // which was forked just now, and has not begun
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the directory's own
    if (std::filesystem::read_symlink(entry, gone) == std::filesystem::canonical(path))
      of_child.emplace(dup(std::stoi(entry.path().filename())));
  }
  REQUIRE(of_child);
  file.close();
  CHECK_NOTHROW(TimelineFile(path, {}));
}

TEST_CASE("a full disk is told once, and takes no time of who records") {
  std::promise<std::string> told;
  TimelineFile file("/dev/full", [&](const std::string& why) { told.set_value(why); });
  file.add("{}");
  auto why = told.get_future();
  REQUIRE(why.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  const std::string text = "the timeline '/dev/full' cannot be written: No space left on device";
  CHECK(why.get() == text);
  CHECK(!file.add("{}"));
  try {
    file.close();
    FAIL("it was closed without an error");
  } catch (const Error& error) {
    CHECK(error.what() == text);
  }
}

/// A disk that takes nothing until it is read.
class SlowDisk {
 public:
  explicit SlowDisk(const std::string& path) {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    reader_ = open(path.c_str(), O_RDONLY | O_NONBLOCK);
    REQUIRE(reader_ >= 0);
    fcntl(reader_, F_SETFL, 0);
  }
  ~SlowDisk() { close(reader_); }
  /// Until the writer closes it.
  std::string read_all() {
    std::string all;
    char some[65536];
    for (ssize_t n; (n = read(reader_, some, sizeof some)) > 0;) all.append(some, std::size_t(n));
    return all;
  }

 private:
  int reader_ = -1;
};

const TimelineJob kJob{.id = 7, .name = "job 7, rank 2 of 4"};

struct Recorded {
  Timeline timeline{config::make_logger({.level = LogLevel::kError})};
  JobTimeline job{timeline, kJob};
  Time now{std::chrono::seconds(100)};

  Time later(std::int64_t us) { return now += std::chrono::microseconds(us); }
  void stop() {
    Timeline::Stopped stopped = timeline.stop(now);
    if (stopped.file) stopped.file->close(stopped.last);
  }
};

TEST_CASE("events that find no room on a slow disk are counted, and the file says how many") {
  const Directory directory;
  SlowDisk disk(directory / "pipe.2");
  Recorded recorded;
  start(recorded.timeline, directory / "pipe", 2, recorded.now);
  // Of more than 50 bytes each: more than the queue, as much again that is being written, and the
  // pipe take.
  constexpr std::size_t kInstants = 3 * TimelineFile::kQueueBytes / 50;
  for (std::size_t i = 0; i < kInstants; ++i)
    recorded.job.instant("something", {}, recorded.later(1));
  auto read = std::async(std::launch::async, [&] { return disk.read_all(); });
  recorded.stop();
  std::uint64_t seen = 0, lost = 0;
  for (const json& event : json::parse(read.get())) {
    if (event["name"] == "something") ++seen;
    if (event["name"] == "events lost") lost += event["args"]["count"].get<std::uint64_t>();
  }
  CHECK(lost > 0);
  CHECK(seen + lost == kInstants);
}

TEST_CASE("an op is a span with what it waits and what it runs in it") {
  const Directory directory;
  const std::string path = directory / "trace.json";
  Recorded recorded;
  start(recorded.timeline, path, 2, recorded.now);
  worker::OpRequest request;
  request.element_count = 1000;
  request.tag = 5;
  const Time called = recorded.later(10);
  TimelineOp op = recorded.job.called("all_reduce", request, called);
  recorded.job.runs(op, recorded.later(20));
  recorded.job.runs(op, recorded.later(1));  // it begins again: that is told once
  recorded.job.ended(op, {.blocks = 4, .bytes_sent = 99}, {}, recorded.later(30));
  request.collective = wire::Collective::kBroadcast;
  request.root = 3;
  const TimelineOp failing = recorded.job.called("broadcast", request, recorded.later(1));
  recorded.job.ended(failing, {}, Error(ErrorCode::kWorkerLost, "rank 1 is \"lost\"", 1, 8),
                     recorded.later(5));
  TimelineOp message = recorded.job.called("send", request, recorded.later(1), 1);
  recorded.stop();
  recorded.job.runs(message, recorded.later(1));  // nothing happens

  const json events = events_of(directory / "trace.2.json");
  std::string phases;
  for (const json& event : events) {
    CHECK(event["pid"] == 2);
    phases += event["ph"].get<std::string>() + event["name"].get<std::string>() + " ";
  }
  CHECK(phases ==
        "Mprocess_name Mprocess_sort_index Mthread_name"
        " ball_reduce bqueued equeued brunning erunning eall_reduce"
        " bbroadcast bqueued iop failed equeued ebroadcast bsend bqueued ");
  CHECK(events[2]["args"]["name"] == kJob.name);
  const json& begin = events[3];
  CHECK(begin["tid"] == 7);
  CHECK(begin["args"]["elements"] == 1000);
  CHECK(begin["args"]["bytes"] == 4000);
  CHECK(begin["args"]["dtype"] == "float");
  CHECK(begin["args"]["reduction"] == "sum");
  CHECK(begin["args"]["tag"] == 5);
  const auto us = [&](std::size_t i) {
    return events[i]["ts"].get<double>() - begin["ts"].get<double>();
  };
  CHECK(std::abs(us(5) - 20) < 1);
  CHECK(us(6) == us(5));
  CHECK(std::abs(us(8) - 51) < 1);
  CHECK(events[8]["args"]["bytes_sent"] == 99);
  for (std::size_t i = 3; i < 9; ++i) CHECK(events[i]["id"] == begin["id"]);
  CHECK(events[9]["id"] != begin["id"]);
  CHECK(events[9]["args"]["root"] == 3);
  CHECK(events[11]["args"]["call"] == "broadcast");
  CHECK(events[11]["args"]["error"] == "rank 1 is \"lost\"");
  CHECK(events[11]["args"]["rank"] == 1);
  CHECK(events[13]["args"]["code"] == "worker lost");
  CHECK(events[14]["args"]["peer"] == 1);
  CHECK(!events[14]["args"].contains("root"));
}

TEST_CASE("a timeline that has no rank yet waits for the first job's, and can be started again") {
  const Directory directory;
  Recorded recorded;
  start(recorded.timeline, directory / "first.json", {}, recorded.now);
  CHECK(recorded.timeline.is_started());
  CHECK(!recorded.job.is_on());
  CHECK_THROWS_AS(start(recorded.timeline, directory / "x", {}, recorded.now), Error);
  recorded.timeline.joins_as(4, recorded.now);
  TimelineOp op = recorded.job.called("barrier", {}, recorded.now);
  recorded.timeline.joins_as(5, recorded.now);  // another job
  recorded.stop();
  start(recorded.timeline, directory / "second.json", 4, recorded.now);
  recorded.job.runs(op, recorded.now);  // began in the other file
  recorded.job.ended(op, {}, {}, recorded.now);
  recorded.stop();
  CHECK(events_of(directory / "first.4.json").size() == 5);
  CHECK(events_of(directory / "second.4.json").size() == 2);
  CHECK_THROWS_AS(start(recorded.timeline, "", 4, recorded.now), Error);
}

}  // namespace
}  // namespace sluice::timeline_tests
