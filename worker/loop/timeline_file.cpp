#include "worker/loop/timeline_file.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/log/printable.hpp"
#include "common/memory/descriptor.hpp"
#include "common/memory/thread_without_signals.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {
namespace {

/// How often lines are written. The recording thread does not wake the writer, so what a killed
/// process has recorded within this time may be missing from its file.
constexpr std::chrono::milliseconds kWritePeriod{20};

/// The kernel may cut a write short at multiples of this, and nowhere else.
constexpr std::size_t kPage = 4096;

constexpr std::size_t kMostTextBytes = 700;  // each byte becomes at most 4: far less than a page

std::string reason(int error) {
  return std::generic_category().message(error);
}

Error unavailable(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kUnavailable, "the timeline '" + path + "' cannot be written: " + why);
}

memory::Descriptor open_file(const std::string& path) {
  // Opening a pipe that nobody reads fails at once.
  memory::Descriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (!file) throw unavailable(path, reason(errno));
  struct stat is {};
  if (fstat(file.get(), &is) != 0) throw unavailable(path, reason(errno));
  const bool is_file = S_ISREG(is.st_mode);
  if (is_file && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw unavailable(path,
                      "another process writes its timeline there; %r in the name stands for "
                      "the rank, %p for the process");
  if (is_file && ftruncate(file.get(), 0) != 0) throw unavailable(path, reason(errno));
  fcntl(file.get(), F_SETFL, fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

}  // namespace

std::string timeline_path(std::string_view file, std::uint16_t rank) {
  std::string path(file);
  if (path.find("%r") == std::string::npos && path.find("%p") == std::string::npos) {
    const std::filesystem::path whole(path);
    return (whole.parent_path() /
            (whole.stem().string() + "." + std::to_string(rank) + whole.extension().string()))
        .string();
  }
  replace_all(path, "%r", std::to_string(rank));
  replace_all(path, "%p", std::to_string(getpid()));
  return path;
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : printable(text.substr(0, kMostTextBytes))) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// What the writing thread and the recording thread share.
struct TimelineFile::Writer {
  Writer(std::string path, memory::Descriptor file, std::function<void(const std::string&)> failed)
      : path_(std::move(path)), file_(std::move(file)), failed_(std::move(failed)) {}

  bool add(std::string_view event) {
    const std::lock_guard lock(mutex_);  // the writer holds it only for a swap
    if (!error_.empty() || waiting_.size() + event.size() + 1 > kQueueBytes) return false;
    waiting_.append(event).push_back('\n');
    return true;
  }

  void run() {
    std::string lines;
    bool ends = false;
    while (!ends) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kWritePeriod, [&] { return ends_; });
        ends = ends_;
        lines.swap(waiting_);
      }
      write_lines(lines);
      lines.clear();
    }
    if (!has_failed_) write_out(events_ == 0 ? "[]\n" : "\n]\n");
    flock(file_.get(), LOCK_UN);  // a child that was just forked may still have the file
    in_children_.reset();
    file_ = {};
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  /// Returns why not all was written; empty if all was.
  std::string close(std::string_view last) {
    std::unique_lock lock(mutex_);
    if (!last.empty()) waiting_.append(last).push_back('\n');
    ends_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kClosingTime, [&] { return closed_; }))
      return "it takes longer than " +
             std::to_string(
                 std::chrono::duration_cast<std::chrono::seconds>(kClosingTime).count()) +
             " s";
    return error_;
  }

 private:
  /// Each line begins on a page and does not leave it.
  void write_lines(std::string_view lines) {
    std::string out;
    std::size_t end = size_;  // the end of the file
    while (!lines.empty() && !has_failed_) {
      const std::string_view event = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(event.size() + 1);
      const std::string_view before = events_++ == 0 ? "[\n" : "\n,";
      const std::size_t line = before.size() + event.size();
      const std::size_t left = kPage - end % kPage;
      const std::size_t blanks = line > left && line <= kPage ? left : 0;
      out.append(blanks, ' ').append(before).append(event);
      end += blanks + line;
    }
    write_out(out);
  }

  void write_out(std::string_view out) {
    while (!out.empty() && !has_failed_) {
      const ssize_t written = write(file_.get(), out.data(), out.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return fail(reason(errno));
      size_ += static_cast<std::size_t>(written);
      out.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void fail(const std::string& why) {
    has_failed_ = true;
    // A full disk may have accepted a part of a line. What it accepted on whole pages stays. A pipe
    // cannot be truncated.
    [[maybe_unused]] const int cut =
        ftruncate(file_.get(), static_cast<off_t>(size_ / kPage * kPage));
    {
      const std::lock_guard lock(mutex_);
      error_ = why;
      waiting_.clear();
    }
    if (failed_) failed_(unavailable(path_, why).what());
  }

  const std::string path_;
  memory::Descriptor file_;  // this and the next ones are the writer's
  // When this process is killed, children that live on must not keep the file's lock.
  std::optional<ClosedInChildren> in_children_{file_.get()};
  const std::function<void(const std::string&)> failed_;
  std::size_t size_ = 0;
  std::uint64_t events_ = 0;
  bool has_failed_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::string waiting_;
  std::string error_;
  bool ends_ = false;
  bool closed_ = false;
};

TimelineFile::TimelineFile(std::string path, std::function<void(const std::string&)> failed)
    : path_(std::move(path)),
      writer_(std::make_shared<Writer>(path_, open_file(path_), std::move(failed))) {
  thread_without_signals([writer = writer_] { writer->run(); }).detach();
}

TimelineFile::~TimelineFile() {
  try {
    close();
  } catch (const Error&) {  // reported to `failed`, or nothing can be done
  }
}

bool TimelineFile::add(std::string_view event) {
  return writer_->add(event);
}

void TimelineFile::close(std::string_view last) {
  const auto writer = std::exchange(writer_, nullptr);
  if (!writer) return;
  if (const std::string why = writer->close(last); !why.empty()) throw unavailable(path_, why);
}

}  // namespace sluice
