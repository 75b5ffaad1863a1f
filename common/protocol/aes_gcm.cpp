#include "common/protocol/aes_gcm.hpp"

#include <utility>

#include <intel-ipsec-mb.h>
#include <sodium.h>

#include <sluice/error.hpp>

namespace sluice {
namespace {

using Nonce = std::array<std::uint8_t, 12>;

/// The library's functions for this CPU; the table never changes.
IMB_MGR* functions() {
  static IMB_MGR* const table = [] {
    IMB_MGR* const made = alloc_mb_mgr(0);
    if (made == nullptr) throw Error(ErrorCode::kUnavailable, "no memory for the AES library");
    init_mb_mgr_auto(made, nullptr);
    if ((made->features & IMB_FEATURE_AESNI) == 0)
      throw Error(ErrorCode::kUnavailable,
                  "packets are authenticated and encrypted only by a CPU with AES instructions");
    return made;
  }();
  return table;
}

const std::uint8_t* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

/// Four zero bytes, then the counter in little-endian order.
Nonce nonce_of(std::uint64_t counter) {
  Nonce nonce{};
  for (std::size_t i = 0; i < sizeof counter; ++i)
    nonce[4 + i] = static_cast<std::uint8_t>(counter >> 8 * i);
  return nonce;
}

}  // namespace

void check_cpu_has_aes() {
  functions();
}

struct GcmKey::Expanded {
  gcm_key_data data;
};

GcmKey::GcmKey(const Key& key) : expanded_(std::make_unique<Expanded>()) {
  IMB_AES256_GCM_PRE(functions(), key.data(), &expanded_->data);
}
GcmKey::GcmKey(GcmKey&&) noexcept = default;
GcmKey& GcmKey::operator=(GcmKey&& other) noexcept {
  std::swap(expanded_, other.expanded_);  // the destructor of `other` wipes it
  return *this;
}
GcmKey::~GcmKey() {
  if (expanded_) sodium_memzero(expanded_.get(), sizeof *expanded_);
}

GcmKey::Tag GcmKey::encrypt(std::uint64_t counter, std::span<const std::byte> clear,
                            std::span<const std::byte> text, std::byte* out) const {
  gcm_context_data context;
  const Nonce nonce = nonce_of(counter);
  Tag tag;
  IMB_AES256_GCM_ENC(functions(), &expanded_->data, &context, reinterpret_cast<std::uint8_t*>(out),
                     raw(text), text.size(), nonce.data(), raw(clear), clear.size(),
                     reinterpret_cast<std::uint8_t*>(tag.data()), tag.size());
  return tag;
}

GcmKey::Tag GcmKey::decrypt(std::uint64_t counter, std::span<const std::byte> clear,
                            std::span<const std::byte> text, std::byte* out) const {
  gcm_context_data context;
  const Nonce nonce = nonce_of(counter);
  Tag tag;
  IMB_AES256_GCM_DEC(functions(), &expanded_->data, &context, reinterpret_cast<std::uint8_t*>(out),
                     raw(text), text.size(), nonce.data(), raw(clear), clear.size(),
                     reinterpret_cast<std::uint8_t*>(tag.data()), tag.size());
  return tag;
}

}  // namespace sluice
