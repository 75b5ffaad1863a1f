// DPDK's interrupt thread. On it, virtio-user handles peers that come or go.
#pragma once

#include <functional>

#include "common/base/time.hpp"

namespace sluice::net {

/// Runs `what` on DPDK's interrupt thread, after all alarms that drivers have set there, and waits
/// for its end. Rethrows here what it throws. If it has not ended after `time_limit`, peers for
/// which the thread waits are disconnected until it has. Returns false if that thread does not
/// begin within a further two seconds; then it is never run.
bool run_on_interrupt_thread(std::function<void()> what, Duration time_limit);

}  // namespace sluice::net
