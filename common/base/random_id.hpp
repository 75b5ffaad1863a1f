// Identifiers that nobody can guess: incarnations, generations, epochs, tokens, nonces.
#pragma once

#include <cstdint>

namespace sluice {

/// 64 bits from the system's generator, never 0. Aborts the process if there is none.
std::uint64_t random_id();

}  // namespace sluice
