// Checks that the library does not change its host process.
#pragma once

namespace sluice::api_test {

/// Opens and closes a Context, on a thread that is pinned and blocks a signal, and checks that
/// neither changed, nor any handler, and that no thread of the library takes signals. Called before
/// the program's own Context exists.
void good_guest();

}  // namespace sluice::api_test
