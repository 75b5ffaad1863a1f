// A file of trace events, as Perfetto and chrome://tracing read them: a JSON array, one event a
// line.
//
// Who records events never waits for the disk: a line goes to a queue with a bound, and a thread of
// its own writes. The file is a valid beginning of an array at any time, also after the process was
// killed: with "]" behind it, which readers add themselves, it is JSON. For that no line lies
// across the end of a page, as that is where the kernel may cut a write short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/time.hpp"

namespace sluice {

/// `file` with %r replaced by the rank and %p by the process id. Where it has neither, ".RANK" is
/// put before its extension: "trace.json" becomes "trace.3.json".
std::string timeline_path(std::string_view file, std::uint16_t rank);

/// A JSON string of a text from anywhere, which is cut where it is long.
std::string json_text(std::string_view text);

class TimelineFile {
 public:
  /// Lines wait in so many bytes; those that find no room are lost.
  static constexpr std::size_t kQueueBytes = std::size_t{1} << 20;
  /// How long close() waits for the disk.
  static constexpr Duration kClosingTime = std::chrono::seconds(5);

  /// Replaces a file that is there, unless another process writes its own timeline to it. `failed`
  /// is called once, by the writing thread, when the file takes no more. Throws kUnavailable, which
  /// names the path.
  TimelineFile(std::string path, std::function<void(const std::string&)> failed);
  ~TimelineFile();  ///< as close(), whatever comes of it
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  /// An event, a JSON object. False: there is no room, or the file takes no more, and it is lost.
  bool add(std::string_view event);

  /// Writes what waits, then `last`, if any, and the array's end. Throws kUnavailable, which names
  /// the path, where that was not possible within kClosingTime.
  void close(std::string_view last = {});

  const std::string& path() const { return path_; }

  struct Writer;

 private:
  const std::string path_;
  std::shared_ptr<Writer> writer_;  // the thread's, too; null: closed
};

}  // namespace sluice
