// Time as the engines see it: an argument, never a call. Programs pass a monotonic clock, and tests
// a virtual one.
#pragma once

#include <chrono>

namespace sluice {

using Duration = std::chrono::nanoseconds;

/// The tag of Sluice's time line. Loops read the clock once per turn and pass the value on.
struct TimeLine {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<TimeLine>;
  static constexpr bool is_steady = true;
};

using Time = TimeLine::time_point;

/// A deadline that is never reached.
inline constexpr Time kNever = Time::max();

/// `from + d`, but kNever if that would overflow.
constexpr Time after(Time from, Duration d) {
  return d > kNever - from ? kNever : from + d;
}

inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace sluice
