// The state behind a Work handle.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include <sluice/sluice.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"

namespace sluice {

class Progress;

struct Work::State {
  std::atomic<bool> done{false};
  // Written before `done`, const afterwards.
  std::optional<Error> error;
  OpStatistics statistics;
  // Const from the start. Weak: a handle that outlives its context keeps no ports open.
  std::weak_ptr<Progress> progress;
  Time started{};
  const Communicator::Impl* job = nullptr;  ///< gone once the op is done
  OpNumber op = 0;                          ///< with the turn held
};

}  // namespace sluice
