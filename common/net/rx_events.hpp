// Sleep until frames come: what a polling thread does instead of giving its core away for a fixed
// time, where its ports can tell of frames.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/limits.hpp"
#include "common/base/time.hpp"

namespace sluice::net {

/// Descriptors that become readable when a frame comes in; see DatagramIo::arm.
class RxEvents {
 public:
  static constexpr std::size_t kMax = limits::kMaxPorts * limits::kMaxLanes;

  /// False if there is no room for one more.
  bool add(int descriptor);
  void clear() { count_ = 0; }
  bool empty() const { return count_ == 0; }

  /// None of them is readable any more, until a further frame comes.
  void clear_past() const;

  /// Sleeps until one is readable, `longest` at most, or until a signal comes. It stays readable:
  /// several threads may wait for the same, and a frame that one of them slept through must wake
  /// the others.
  void wait(Duration longest) const;

 private:
  std::array<int, kMax> descriptors_{};
  std::size_t count_ = 0;
};

}  // namespace sluice::net
