// Which release this is, and which build of it.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// "0.1.0": the release. Ends with NUL, as the next one.
const char* version();

/// What scripts/lib/build-id said of the sources when this was built: `git describe --always
/// --dirty`, such as "629700c" or "629700c-dirty", also where a package was made of them. The
/// release, where they came without both.
const char* build_id();

/// "sluice-perf 0.1.0 (build 629700c)": what --version prints, with a line feed.
std::string version_line(std::string_view program);

}  // namespace sluice
