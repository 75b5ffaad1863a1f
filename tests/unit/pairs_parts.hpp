// What the tests of sums of pairs share: the moves of a host's ranks, and sums as aggregators make
// them, without engines.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tests/unit/catch.hpp"
#include "worker/engine/keyed_sums.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/host/engine/move_sequence.hpp"

namespace sluice::worker {

/// Moves what all ranks of a host move next.
inline void move_next(std::span<host::MoveSequence* const> ranks, OpNumber op) {
  std::vector<const OpRequest*> requests;
  for (host::MoveSequence* const rank : ranks) requests.push_back(&rank->next(op).request);
  const OpRequest& first = *requests[0];
  const std::size_t size = element_bytes(first.type);
  std::vector<std::byte> tensor(first.element_count * size);
  for (const OpRequest* request : requests) {
    REQUIRE(request->element_count == first.element_count);
    REQUIRE(request->layout == first.layout);
    REQUIRE(request->type == first.type);
    const ElementRange held = request->held.value_or(ElementRange{0, request->element_count});
    if (held.begin != held.end)
      std::memcpy(tensor.data() + held.begin * size, request->input,
                  (held.end - held.begin) * size);
  }
  for (const OpRequest* request : requests) {
    const std::vector<ElementRange> whole{{0, request->element_count}};
    std::byte* out = request->output;
    for (const ElementRange& range : request->wanted.value_or(whole)) {
      const std::size_t bytes = (range.end - range.begin) * size;
      if (bytes != 0) std::memcpy(out, tensor.data() + range.begin * size, bytes);
      out += bytes;
    }
  }
}

/// All that they move; they agree.
inline void move_all(std::span<host::MoveSequence* const> ranks, OpNumber op) {
  while (!ranks[0]->is_done()) {
    move_next(ranks, op);
    for (host::MoveSequence* const rank : ranks) REQUIRE(!rank->end_move());
  }
}

template <class Element>
using SumsByKey = std::map<std::uint64_t, std::vector<Element>>;

template <class Element>
void add_pairs(const KeyedRequest& pairs, SumsByKey<Element>& sums) {
  const auto* row = reinterpret_cast<const Element*>(pairs.rows);
  for (const std::uint64_t key : pairs.keys) {
    std::vector<Element>& sum = sums[key];
    sum.resize(pairs.row_elements);
    for (Element& element : sum) element += *row++;
  }
}

/// Gives the sums to who has asked for them, those that reach the threshold.
template <class Element>
void give_sums(const OpRequest& request, const SumsByKey<Element>& sums) {
  const KeyedRequest& keyed = *request.keyed;
  const std::size_t row_bytes = keyed.row_elements * sizeof(Element);
  const std::shared_ptr<std::byte[]> keys(new std::byte[sums.size() * sizeof(std::uint64_t)]);
  const std::shared_ptr<std::byte[]> rows(new std::byte[sums.size() * row_bytes]);
  std::uint64_t size = 0, rejected = 0;
  for (const auto& [key, sum] : sums) {
    double most = 0;
    for (const Element element : sum) most = std::max(most, std::fabs(double(element)));
    if (most < keyed.threshold) {
      ++rejected;
      continue;
    }
    std::memcpy(keys.get() + size * sizeof key, &key, sizeof key);
    std::memcpy(rows.get() + size * row_bytes, sum.data(), row_bytes);
    ++size;
  }
  const KeyedGeometry geometry{.key_bound = keyed.key_bound, .row_elements = keyed.row_elements};
  *keyed.sums = KeyedSums(geometry, request.type,
                          {.keys = {keys, keys.get()}, .rows = {rows, rows.get()}, .size = size});
  keyed.sums->rejected[0] = rejected;
}

/// As aggregators do, the first rank's first.
template <class Element>
void sum_pairs(std::span<const OpRequest* const> of_rank) {
  SumsByKey<Element> sums;
  for (const OpRequest* request : of_rank) {
    REQUIRE(request->keyed->key_bound == of_rank[0]->keyed->key_bound);
    add_pairs(*request->keyed, sums);
  }
  for (const OpRequest* request : of_rank) give_sums(*request, sums);
}

/// Whether these are the sums, and no others.
template <class Element>
bool are(const KeyedSums& found, std::uint16_t row_elements, const SumsByKey<Element>& expected) {
  if (found.size() != expected.size()) return false;
  std::vector<std::uint64_t> keys(found.size());
  std::vector<Element> rows(found.size() * row_elements);
  found.merge(keys, std::as_writable_bytes(std::span(rows)));
  std::size_t at = 0;
  for (const auto& [key, sum] : expected) {
    if (keys[at] != key || std::memcmp(sum.data(), rows.data() + at * row_elements,
                                       row_elements * sizeof(Element)) != 0)
      return false;
    ++at;
  }
  return true;
}

}  // namespace sluice::worker
