// The forms of lines in a log. All show text as printable() returns it.
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
/// and with the line's own fields as SLUICE_JOB, SLUICE_LANE and so on. The journal's native
/// protocol is stable and is described on one page, so libsystemd is not linked. `path` is that of
/// the journal's socket. Throws std::system_error if there is none, or if it accepts nothing. A
/// line that it does not accept later is lost and goes to the logger's error handler; when the
/// journal is started again, it gets the next lines.
spdlog::sink_ptr journal_sink(const std::string& path);

}  // namespace sluice
