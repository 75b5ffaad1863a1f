// What ranks say of their host, so that those who can sum in memory that they share find out.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::worker::hierarchy {

/// The same of two processes of this build and user that see the same /dev/shm and each other's
/// process ids, and call their host the same. 0 where that is not to be found out.
std::uint64_t host_id(const std::string& name);

}  // namespace sluice::worker::hierarchy
