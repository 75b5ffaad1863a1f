#pragma once

namespace sparse {

/// Checks the checker, merges and QSGD, without other ranks; false and a message on stderr if
/// something does not hold.
bool self_test();

}  // namespace sparse
