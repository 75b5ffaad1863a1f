// Sleeps until frames come. A polling thread uses it if its ports can signal frames, in place of a
// sleep of fixed length.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/limits.hpp"
#include "common/base/time.hpp"

namespace sluice::net {

/// Descriptors that become readable when a frame comes; see DatagramIo::arm.
class RxEvents {
 public:
  static constexpr std::size_t kMax = limits::kMaxPorts * limits::kMaxLanes;

  /// Returns false if there is no room for one more.
  bool add(int descriptor);
  void clear() { count_ = 0; }
  bool empty() const { return count_ == 0; }

  /// Makes all of them unreadable until a further frame comes.
  void clear_past() const;

  /// Sleeps until one is readable, at most `longest`, or until a signal comes. The descriptor stays
  /// readable: several threads may wait for the same one, and a frame that came while one of them
  /// slept must wake the others.
  void wait(Duration longest) const;

 private:
  std::array<int, kMax> descriptors_{};
  std::size_t count_ = 0;
};

}  // namespace sluice::net
