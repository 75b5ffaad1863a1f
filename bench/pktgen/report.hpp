// What sluice-pktgen prints and writes.
#pragma once

#include <string>

#include "bench/pktgen/options.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// For a person.
std::string to_text(const Options& options, const Report& report);

/// Whole or not at all. Throws Error{kUnavailable}.
void write_json(const std::string& path, const Options& options, const Report& report);

/// One line of what happens just now.
std::string live_line(const Window& window);

}  // namespace sluice::pktgen
