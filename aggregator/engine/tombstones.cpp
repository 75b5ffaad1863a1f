#include "aggregator/engine/tombstones.hpp"

#include <cassert>

#include "common/base/limits.hpp"

namespace sluice::aggregator {

template <class T>
const T* Tombstones::Bounded<T>::find(std::uint64_t key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

/// The first value for a key stays.
template <class T>
void Tombstones::Bounded<T>::add(std::uint64_t key, const T& value) {
  if (!values_.emplace(key, value).second) return;
  order_.push_back(key);
  assert(order_.size() == values_.size());
  if (order_.size() <= limits::kMaxTombstones) return;
  values_.erase(order_.front());
  order_.pop_front();
}

void Tombstones::token_ended(std::uint64_t token, const Tombstone& tombstone) {
  of_tokens_.add(token, tombstone);
}

const Tombstone* Tombstones::of_token(std::uint64_t token) const {
  return of_tokens_.find(token);
}

void Tombstones::ended(std::uint64_t id, const AbortInfo& why) {
  if (id != 0) over_.add(id, why);
}

const AbortInfo* Tombstones::why_over(const wire::Join& join) const {
  const AbortInfo* const why = over_.find(join.nonce);
  return why == nullptr && join.generation != 0 ? over_.find(join.generation) : why;
}

}  // namespace sluice::aggregator
