// The release, and the build, of these sources.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// The release, "0.1.0". Ends with NUL, and so does the next one.
const char* version();

/// What scripts/lib/build-id said of the sources at build time: `git describe --always --dirty`,
/// such as "629700c" or "629700c-dirty"; a package made of the sources keeps it. If the sources had
/// neither, it is the release.
const char* build_id();

/// What --version prints, with a line feed: "sluice-perf 0.1.0 (build 629700c)".
std::string version_line(std::string_view program);

}  // namespace sluice
