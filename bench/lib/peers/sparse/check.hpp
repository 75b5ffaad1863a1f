/// Whether a sum is right.
#pragma once

#include <cstddef>
#include <string>

#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {

struct Verdict {
  std::size_t wrong = 0;  // elements
  std::string first;      // the fault of the first one
};

/// `sum` must be `exact` within `allowed` (empty: exactly). The indices of pairs must be ascending
/// and below the number of elements. Elements without a pair are zero.
Verdict check(const Stream& sum, const Dense& exact, const Dense& allowed);

/// Ok-Topk delivers about k pairs, from k / 2 to 2 k, if there are so many.
Verdict check_delivered(std::size_t delivered, std::size_t k);

}  // namespace sparse
