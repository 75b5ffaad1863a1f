// One line per packet, for a person who replays a seed.
#pragma once

#include <span>

#include "common/base/endpoint.hpp"
#include "common/base/time.hpp"

namespace sluice::sim {

void trace(const char* what, Time now, const Endpoint& from, const Endpoint& to,
           std::span<const std::byte> datagram);

/// Prints a line between those of packets.
void trace_note(bool on, Time now, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace sluice::sim
