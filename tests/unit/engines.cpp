#include "tests/unit/engines.hpp"

namespace sluice {

template class aggregator::Engine<parts::Sink>;
template class worker::Engine<parts::Sink>;

}  // namespace sluice
