// AES-256-GCM (NIST SP 800-38D) by Intel's multi-buffer library, which uses the CPU's vector AES.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace sluice {

using Key = std::array<std::uint8_t, 32>;

/// Throws kUnavailable if the CPU has no AES instructions.
void check_cpu_has_aes();

/// A key, expanded, and wiped when it goes. For one thread at a time.
class GcmKey {
 public:
  using Tag = std::array<std::byte, 16>;

  /// Needs what check_cpu_has_aes() checks.
  explicit GcmKey(const Key& key);
  GcmKey(GcmKey&&) noexcept;
  GcmKey& operator=(GcmKey&&) noexcept;
  ~GcmKey();

  /// Encrypts `text` to `out`, of the same length: the same place, or one apart. The tag covers
  /// `clear`, too. No `counter` may be used twice for different bytes: who sees two such packets
  /// can forge others.
  Tag encrypt(std::uint64_t counter, std::span<const std::byte> clear,
              std::span<const std::byte> text, std::byte* out) const;
  /// The reverse. Of another tag than the packet's nothing of `out` may be believed.
  Tag decrypt(std::uint64_t counter, std::span<const std::byte> clear,
              std::span<const std::byte> text, std::byte* out) const;

 private:
  struct Expanded;
  std::unique_ptr<Expanded> expanded_;
};

}  // namespace sluice
