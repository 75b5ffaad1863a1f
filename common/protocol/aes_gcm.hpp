// AES-256-GCM (NIST SP 800-38D) with Intel's multi-buffer library, which uses the CPU's vector AES.
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

/// An expanded key, which its destructor wipes. For one thread at a time.
class GcmKey {
 public:
  using Tag = std::array<std::byte, 16>;

  /// Requires what check_cpu_has_aes() checks.
  explicit GcmKey(const Key& key);
  GcmKey(GcmKey&&) noexcept;
  GcmKey& operator=(GcmKey&&) noexcept;
  ~GcmKey();

  /// Encrypts `text` to `out`, which has the same length, and is the same memory or separate. The
  /// tag also covers `clear`. A `counter` must not be used twice for different bytes: an attacker
  /// that sees two such packets can forge others.
  Tag encrypt(std::uint64_t counter, std::span<const std::byte> clear,
              std::span<const std::byte> text, std::byte* out) const;
  /// Decrypts. If the tag differs from the packet's, nothing in `out` can be trusted.
  Tag decrypt(std::uint64_t counter, std::span<const std::byte> clear,
              std::span<const std::byte> text, std::byte* out) const;

 private:
  struct Expanded;
  std::unique_ptr<Expanded> expanded_;
};

}  // namespace sluice
