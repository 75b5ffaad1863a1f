// A file of trace events for Perfetto and chrome://tracing: a JSON array with one event per line.
//
// The thread that records events never waits for the disk: lines go to a bounded queue, and another
// thread writes them. At any time the file is a valid beginning of an array, also after the process
// was killed: readers add the "]" that is missing. For that, no line crosses the end of a page, as
// the kernel may cut a write short there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/time.hpp"

namespace sluice {

/// Returns `file` with %r replaced by the rank and %p by the process id. If it has neither, ".RANK"
/// is put before its extension: "trace.json" becomes "trace.3.json".
std::string timeline_path(std::string_view file, std::uint16_t rank);

/// A text from anywhere as a JSON string. Long texts are cut.
std::string json_text(std::string_view text);

class TimelineFile {
 public:
  /// The size of the queue. Lines that find no room are lost.
  static constexpr std::size_t kQueueBytes = std::size_t{1} << 20;
  /// How long close() waits for the disk.
  static constexpr Duration kClosingTime = std::chrono::seconds(5);

  /// Replaces an existing file, unless another process writes its timeline to it. The writing
  /// thread calls `failed` once, when the file accepts no more. Throws kUnavailable, which names
  /// the path.
  TimelineFile(std::string path, std::function<void(const std::string&)> failed);
  ~TimelineFile();  ///< as close(), but ignores errors
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  /// Adds an event, a JSON object. Returns false if it is lost: there is no room, or the file
  /// accepts no more.
  bool add(std::string_view event);

  /// Writes what waits, then `last`, if any, and the end of the array. Throws kUnavailable, which
  /// names the path, if that was not possible within kClosingTime.
  void close(std::string_view last = {});

  const std::string& path() const { return path_; }

  struct Writer;

 private:
  const std::string path_;
  std::shared_ptr<Writer> writer_;  // shared with the thread; null: closed
};

}  // namespace sluice
