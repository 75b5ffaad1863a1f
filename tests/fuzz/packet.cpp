// libFuzzer target of Packet::parse: whatever comes is dropped with a reason, or is a packet whose
// every part lies within it. tests/unit/wire.cpp replays mutations through the same walk.
#include "tests/fuzz/packet_walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::PacketWalk::run(std::as_bytes(std::span(data, size)));
  return 0;
}
