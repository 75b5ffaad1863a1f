// FNV-1a, finished by a multiply-xor so that the low bits are good too.
#pragma once

#include <cstdint>
#include <string_view>

namespace section_trainer {

constexpr std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (char c : text) h = (h ^ std::uint8_t(c)) * 0x100000001b3;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
  return h ^ (h >> 32);
}

}  // namespace section_trainer
