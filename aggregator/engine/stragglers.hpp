// The search for ranks that ops of one job wait for, although they are alive. At most once in each
// interval the first such rank is reported.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/engine/job_event.hpp"
#include "aggregator/engine/stream.hpp"
#include "common/base/ids.hpp"
#include "common/base/time.hpp"

namespace sluice::aggregator {

class StragglerWatch {
 public:
  /// With `interval` 0 it never looks.
  void begin(std::size_t streams, Duration interval, Time now);
  void end() { due_ = kNever; }

  Time due() const { return due_; }
  /// The first rank that is waited for on a stream which runs the same round as at the last look.
  /// The caller adds how long this rank has been silent. The next look is due after `interval`.
  std::optional<Straggler> look(std::span<const Stream> streams, Duration interval, Time now);

 private:
  void look_again(Duration interval, Time now) {
    due_ = interval.count() == 0 ? kNever : after(now, interval);
  }

  struct Seen {
    Round round{};
    Time since{};
  };
  Time due_ = kNever;
  std::vector<std::optional<Seen>> seen_;  // by stream, while busy, at the last look
};

}  // namespace sluice::aggregator
