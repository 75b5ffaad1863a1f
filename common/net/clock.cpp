#include "common/net/clock.hpp"

#include <rte_cycles.h>

namespace sluice::net {

double cycles_per_second() {
  return static_cast<double>(rte_get_tsc_hz());
}

}  // namespace sluice::net
