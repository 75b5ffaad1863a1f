// What sluice-pktgen prints and writes.
#pragma once

#include <string>
#include <vector>

#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/window.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/session.hpp"

namespace sluice::pktgen {

struct LaneReport {
  Window window;
  Reading total;  ///< from the first packet to the last
};

struct Report {
  Session session;  ///< of lane 0
  Geometry geometry;
  Window window;               ///< with --find-rate, that of the highest rate without loss
  std::vector<Window> trials;  ///< with --find-rate
  Reading total;
  std::vector<LaneReport> lanes;  ///< the sums are of these
  bool right() const { return total.tally.results_wrong == 0 && total.tally.results_missed == 0; }
};

/// For a person.
std::string to_text(const Options& options, const Report& report);

/// Writes it completely or not at all. Throws Error{kUnavailable}.
void write_json(const std::string& path, const Options& options, const Report& report);

/// One line about what happens now.
std::string live_line(const Window& window);

}  // namespace sluice::pktgen
