// DPDK's interrupt thread, on which virtio-user handles a peer that comes or goes.
#pragma once

#include <functional>

#include "common/base/time.hpp"

namespace sluice::net {

/// Runs `what` on DPDK's interrupt thread, after every alarm that drivers have set there, and waits
/// for its end. What it throws is thrown here. If it has not ended after `time_limit`, peers that
/// the thread waits for are let go of until it has. False if that thread does not begin with it
/// two seconds later: then it will never be run.
bool run_on_interrupt_thread(std::function<void()> what, Duration time_limit);

}  // namespace sluice::net
