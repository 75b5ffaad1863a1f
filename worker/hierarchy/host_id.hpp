// The id by which ranks find out whether they are on the same host and can share memory.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::worker::hierarchy {

/// Two processes have the same id if they are of the same build and user, use the same host name,
/// and see the same /dev/shm and each other's process ids. Returns 0 if that cannot be found out.
std::uint64_t host_id(const std::string& name);

}  // namespace sluice::worker::hierarchy
