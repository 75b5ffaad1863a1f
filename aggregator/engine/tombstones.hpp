// What one job remembers of what has ended, so that late packets get the same answer again.
// Bounded: the oldest go first.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "common/protocol/abort_info.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// What became of a token's holder.
struct Tombstone {
  bool left = false;  ///< else aborted, for `why`
  std::uint64_t generation = 0;
  AbortInfo why{};
};

class Tombstones {
 public:
  bool empty() const { return of_tokens_.empty() && over_.empty(); }

  void token_ended(std::uint64_t token, const Tombstone& tombstone);
  /// Null: not remembered.
  const Tombstone* of_token(std::uint64_t token) const;

  /// A generation, or an attempt to join (by its nonce), is over. 0 is none.
  void ended(std::uint64_t id, const AbortInfo& why);
  /// Why what a JOIN speaks of is over; null if it is not, as far as is remembered.
  const AbortInfo* why_over(const wire::Join& join) const;

 private:
  template <class T>
  class Bounded {
   public:
    bool empty() const { return values_.empty(); }
    const T* find(std::uint64_t key) const;
    void add(std::uint64_t key, const T& value);

   private:
    std::unordered_map<std::uint64_t, T> values_;
    std::deque<std::uint64_t> order_;
  };

  Bounded<Tombstone> of_tokens_;
  Bounded<AbortInfo> over_;
};

}  // namespace sluice::aggregator
