// DPDK's interrupt thread, on which virtio-user handles a peer that comes or goes.
#pragma once

#include <functional>

namespace sluice::net {

/// Runs `what` on DPDK's interrupt thread, after every alarm that drivers have set there, and waits
/// for its end. What it throws is thrown here. False if that thread does not begin with it within
/// two seconds: it may wait for ever for a peer that is stuck. Then it will never be run.
bool run_on_interrupt_thread(std::function<void()> what);

}  // namespace sluice::net
