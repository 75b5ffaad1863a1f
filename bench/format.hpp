// printf's formats, for reports.
#pragma once

#include <string>

namespace sluice::bench {

/// At most 511 characters.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace sluice::bench
