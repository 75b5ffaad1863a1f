// What a process has once: its ports and memory, and the loop that polls them.
#pragma once

#include <memory>

#include <sluice/sluice.hpp>

#include "worker/progress.hpp"

namespace sluice {

struct Context::Impl {
  explicit Impl(const ContextOptions& options) : progress(std::make_shared<Progress>(options)) {}

  /// Throws kInvalidArgument while another one lives.
  struct OnePerProcess {
    OnePerProcess();
    ~OnePerProcess();
    OnePerProcess(const OnePerProcess&) = delete;
    OnePerProcess& operator=(const OnePerProcess&) = delete;
  };

  const OnePerProcess one_per_process;
  const std::shared_ptr<Progress> progress;
};

}  // namespace sluice
