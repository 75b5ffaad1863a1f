// A keyed call of an engine, and its result.
#pragma once

#include <cstddef>

#include "tests/sim/tensors.hpp"
#include "worker/engine/op_request.hpp"

namespace sluice::sim {

/// `pairs` and `sums` must exist until the op has ended.
inline worker::OpRequest request_of(const OpSpec& spec, const Pairs& pairs, worker::KeyedSums& sums,
                                    std::size_t result_bytes) {
  worker::OpRequest request;
  request.collective = spec.collective;
  request.type = spec.type;
  request.reduction = spec.reduction;
  request.tag = spec.tag;
  request.encoding = spec.encoding;
  request.rounding_seed = spec.rounding_seed;
  request.keyed = worker::KeyedRequest{.keys = pairs.keys,
                                       .rows = pairs.rows.data(),
                                       .key_bound = spec.key_bound,
                                       .row_elements = spec.row_elements,
                                       .threshold = spec.threshold,
                                       .result_bytes = result_bytes,
                                       .sums = &sums};
  return request;
}

inline unsigned chunk_bits_of(const OpSpec& spec, const Session& session) {
  const auto wire_type =
      spec.encoding == Encoding::kNone ? WireType(spec.type) : WireType(spec.encoding);
  return KeyedGeometry::make(spec.key_bound, spec.row_elements, wire_type, session, 0)
      .value()
      .chunk_bits;
}

inline PairSums in_order(const worker::KeyedSums& sums) {
  PairSums pairs;
  pairs.keys.resize(sums.size());
  pairs.rows.resize(sums.size() * sums.row_bytes());
  sums.merge(pairs.keys, pairs.rows);
  pairs.rejected = sums.rejected;
  return pairs;
}

}  // namespace sluice::sim
