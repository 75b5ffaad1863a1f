#include "common/base/random_id.hpp"

#include <sodium.h>

namespace sluice {

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0) randombytes_buf(&id, sizeof id);
  return id;
}

}  // namespace sluice
