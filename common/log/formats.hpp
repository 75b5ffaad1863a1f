// The forms that a log's lines have. All show text as printable() does.
#pragma once

#include <memory>
#include <string>

#include <spdlog/formatter.h>
#include <spdlog/sinks/sink.h>

namespace sluice {

/// "2026-01-31T12:00:00.123+0100 warning sluice-aggregator: message".
std::unique_ptr<spdlog::formatter> text_formatter();

/// One JSON object per line: time (RFC 3339, UTC), level, process, message, and the line's fields.
std::unique_ptr<spdlog::formatter> json_formatter();

/// Sends each line to systemd's journal, with the fields MESSAGE, PRIORITY and SYSLOG_IDENTIFIER,
/// and with the line's own as SLUICE_JOB, SLUICE_LANE and so on. The journal's native protocol is
/// stable and takes a page, so libsystemd is not linked for it. `path` is its socket's; throws
/// std::system_error if there is none, or it takes nothing. A line that it does not take later
/// is lost and goes to the logger's error handler; a journal that is started again gets the next.
spdlog::sink_ptr journal_sink(const std::string& path);

}  // namespace sluice
