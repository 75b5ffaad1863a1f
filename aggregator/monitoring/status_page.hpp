// The status page: HTML, style and script in one file (status_page.html). It loads only
// status.json.
#pragma once

namespace sluice::aggregator {

extern const char kStatusPage[];

}  // namespace sluice::aggregator
