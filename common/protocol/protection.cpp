#include "common/protocol/protection.hpp"

#include <algorithm>

#include <isa-l/crc.h>
#include <sodium.h>

namespace sluice {
namespace {

using wire::Header;
using Tag = std::array<unsigned char, wire::kTrailerBytes>;

const unsigned char* raw(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}

Header without_integrity(std::span<const std::byte> packet) {
  Header header = *reinterpret_cast<const Header*>(packet.data());
  header.integrity = 0;
  return header;
}

std::uint32_t crc32c(const void* bytes, std::size_t size, std::uint32_t before) {
  // The library only reads, although its signature does not say so.
  return crc32_iscsi(const_cast<unsigned char*>(raw(bytes)), static_cast<int>(size), before);
}

Tag tag_of(std::span<const std::byte> body, const Key& key) {
  const Header header = without_integrity(body);
  const auto rest = body.subspan(sizeof header);
  Tag tag;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), tag.size());
  crypto_generichash_update(&state, raw(&header), sizeof header);
  crypto_generichash_update(&state, raw(rest.data()), rest.size());
  crypto_generichash_final(&state, tag.data(), tag.size());
  return tag;
}

}  // namespace

std::uint32_t integrity_of(std::span<const std::byte> packet) {
  const Header header = without_integrity(packet);
  const auto rest = packet.subspan(sizeof header);
  std::uint32_t crc = ~std::uint32_t{0};
  crc = crc32c(&header, sizeof header, crc);
  crc = ~crc32c(rest.data(), rest.size(), crc);
  return crc == 0 ? 1 : crc;
}

void protect_always(std::span<std::byte> packet, const Protection& with) {
  if (with.sealer != nullptr) return with.sealer->seal(packet);
  auto& header = *reinterpret_cast<Header*>(packet.data());
  header.length = static_cast<std::uint16_t>(packet.size());
  header.flags = with.key == nullptr ? 0 : wire::kAuthenticated;
  header.integrity = 0;
  if (with.key != nullptr) {
    const auto trailer = packet.last(wire::kTrailerBytes);
    const Tag tag = tag_of(packet.first(packet.size() - trailer.size()), *with.key);
    std::copy_n(reinterpret_cast<const std::byte*>(tag.data()), tag.size(), trailer.begin());
  }
  if (with.integrity) header.integrity = integrity_of(packet);
}

void unprotect(std::span<const std::byte> packet, std::span<std::byte> body, const Protection& by) {
  if (by.sealer != nullptr)
    by.sealer->reveal(packet, body);
  else
    std::copy_n(packet.begin(), body.size(), body.begin());
  auto& header = *reinterpret_cast<Header*>(body.data());
  header.length = static_cast<std::uint16_t>(body.size());
  header.flags = 0;
  header.integrity = 0;
}

bool is_authentic(const Packet& packet, const Key& key) {
  if (!packet.is_authenticated()) return false;
  const Tag tag = tag_of(packet.body(), key);
  return sodium_memcmp(tag.data(), packet.bytes().last(tag.size()).data(), tag.size()) == 0;
}

}  // namespace sluice
