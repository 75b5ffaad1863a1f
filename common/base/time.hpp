// Time as the engines see it: an argument, never a call. Production feeds a monotonic clock, tests
// a virtual one.
#pragma once

#include <chrono>

namespace sluice {

using Duration = std::chrono::nanoseconds;

/// Tag of Sluice's time line; the loops read the clock once per turn and pass the value on.
struct TimeLine {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<TimeLine>;
  static constexpr bool is_steady = true;
};

using Time = TimeLine::time_point;

/// A deadline that never comes.
inline constexpr Time kNever = Time::max();

/// `from + d`, but kNever where that would overflow.
constexpr Time after(Time from, Duration d) {
  return d > kNever - from ? kNever : from + d;
}

inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace sluice
