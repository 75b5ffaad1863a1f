#pragma once

namespace sparse {

/// Checks the checker, merges and QSGD, without other ranks. Returns false, with a message on
/// stderr, if something is wrong.
bool self_test();

}  // namespace sparse
