// So that a CHECK of a DropReason that fails prints its name.
#pragma once

#include <ostream>

#include "common/protocol/drop_reason.hpp"

namespace sluice {

inline std::ostream& operator<<(std::ostream& out, DropReason reason) {
  return out << name(reason);
}

}  // namespace sluice
