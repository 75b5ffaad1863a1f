// Reports as JSON files, which are written completely or not at all.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

/// Throws UsageError if --json's file cannot be written, before anything is measured.
void check_writable(const std::string& path);

/// Throws Error{kUnavailable}.
void write_json(const std::string& path, const nlohmann::ordered_json& report);

}  // namespace sluice::bench
