// The tombstones of one job, so that late packets get the same answer again. Their number is
// limited: the oldest are removed first.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "common/protocol/abort_info.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// How the membership of a token's holder ended.
struct Tombstone {
  bool left = false;  ///< if false, the job was aborted for `why`
  std::uint64_t generation = 0;
  AbortInfo why{};
};

class Tombstones {
 public:
  bool empty() const { return of_tokens_.empty() && over_.empty(); }

  void token_ended(std::uint64_t token, const Tombstone& tombstone);
  /// Null if there is none.
  const Tombstone* of_token(std::uint64_t token) const;

  /// Adds a tombstone of a generation, or of an attempt to join (by its nonce). An id of 0 is
  /// ignored.
  void ended(std::uint64_t id, const AbortInfo& why);
  /// Why the attempt or the generation of a JOIN has ended; null if there is no tombstone of them.
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
