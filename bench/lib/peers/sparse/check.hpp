/// Whether a sum is right.
#pragma once

#include <cstddef>
#include <string>

#include "bench/lib/peers/sparse/stream.hpp"

namespace sparse {

struct Verdict {
  std::size_t wrong = 0;  // elements
  std::string first;      // what is wrong with the first one
};

/// `sum` has to be `exact` within `allowed` (empty: exactly); the indices of pairs ascend and are
/// below the number of elements. Elements without a pair are zero.
Verdict check(const Stream& sum, const Dense& exact, const Dense& allowed);

/// Ok-Topk delivers about k pairs if there are as many: from k / 2 to 2 k.
Verdict check_delivered(std::size_t delivered, std::size_t k);

}  // namespace sparse
