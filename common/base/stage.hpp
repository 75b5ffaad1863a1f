// Where a lane's cycles go: the engine says what it turns to, and a sink that wants to know counts.
// On any other sink the calls are nothing at all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class Stage : std::uint8_t {
  kReceive,   ///< polling the ports, headers
  kValidate,  ///< a packet's own checks, and those of job, rank, stream and round
  kSum,       ///< adding blocks
  kBuild,     ///< writing results, and rewriting their sums for the wire
  kTransmit,  ///< headers, handing to the ports
  kOther,     ///< timers, control packets, housekeeping
};
inline constexpr std::size_t kStages = 6;

/// From now on `sink`'s lane is busy with `stage`.
template <class Sink>
void enter([[maybe_unused]] Sink& sink, [[maybe_unused]] Stage stage) {
  if constexpr (requires { sink.enter(stage); }) sink.enter(stage);
}

}  // namespace sluice
