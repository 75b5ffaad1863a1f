// The status page: HTML, style and script in one (status_page.html). It loads status.json beside it
// and nothing else.
#pragma once

namespace sluice::aggregator {

extern const char kStatusPage[];

}  // namespace sluice::aggregator
