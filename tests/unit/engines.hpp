// Both engines with the Sink of engine_parts.hpp, compiled once for all tests that drive them.
#pragma once

#include "aggregator/engine.hpp"
#include "tests/unit/engine_parts.hpp"
#include "worker/engine.hpp"

namespace sluice {

extern template class aggregator::Engine<parts::Sink>;
extern template class worker::Engine<parts::Sink>;

}  // namespace sluice
