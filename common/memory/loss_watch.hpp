// Memory that a peer shares may fail under who reads it, although its file cannot shrink: a page is
// damaged, or cannot be had when memory is short. The access then raises SIGBUS. Here a process
// notes which mapping it was, and goes on: it finds zeros there, and must ask after each access
// whether what it has read was the peer's.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

namespace sluice::memory {

/// Watches one mapping, which must outlive it.
class LossWatch {
 public:
  /// Throws Error kUnavailable if limits::kMaxMappedRegions are watched already.
  explicit LossWatch(std::span<const std::byte> mapping);
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  /// Whether an access has failed. It says so at once to the thread whose access it was.
  const std::atomic<bool>& lost() const;

 private:
  const std::size_t place_;
};

/// For a handler of SIGBUS: if the address is in a watched mapping, puts zeros in place of all of
/// it. False: it is in none.
bool replace_lost_mapping(const void* address) noexcept;

}  // namespace sluice::memory
