// Memory for keys and rows that the ranks of a host move. It is reused from op to op, as the first
// access to a page costs more than the copy into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "worker/memory/fork_generation.hpp"

namespace sluice::worker::host {

/// Memory comes from where peers can access it, if there is such memory, so that pairs need not be
/// copied. Memory that is given back is kept for a while. A job that stops summing pairs keeps the
/// memory of its last sum.
class PairPool {
 public:
  using Memory = std::shared_ptr<std::byte>;

  PairPool() = default;
  PairPool(const PairPool&) = delete;
  PairPool& operator=(const PairPool&) = delete;
  ~PairPool();

  /// Takes uninitialized memory. Throws kUnavailable if there is none. Any thread may give it back,
  /// also after the caller has released the pool.
  static Memory take(const std::shared_ptr<PairPool>& pool, std::size_t bytes);

 private:
  struct Spare {
    std::byte* memory;
    std::size_t bytes;
    std::uint64_t since;  // how many requests there were before
  };

  Spare take(std::size_t bytes);
  void give_back(std::byte* memory, std::size_t bytes) noexcept;

  const unsigned generation_ = fork_generation();
  std::mutex mutex_;        // in a forked child it may stay locked
  std::list<Spare> spare_;  // oldest first
  std::uint64_t taken_ = 0;
};

/// Memory for a number of pairs.
class PairMemory {
 public:
  PairMemory() = default;
  /// Throws kUnavailable if there is none.
  PairMemory(const std::shared_ptr<PairPool>& pool, std::uint64_t pairs, std::size_t row_bytes)
      : keys_(PairPool::take(pool, pairs * sizeof(std::uint64_t))),
        rows_(PairPool::take(pool, pairs * row_bytes)) {}

  std::uint64_t* keys() const { return reinterpret_cast<std::uint64_t*>(keys_.get()); }
  std::byte* rows() const { return rows_.get(); }
  std::shared_ptr<const std::byte> take_keys() { return std::move(keys_); }
  std::shared_ptr<const std::byte> take_rows() { return std::move(rows_); }

 private:
  PairPool::Memory keys_, rows_;
};

}  // namespace sluice::worker::host
