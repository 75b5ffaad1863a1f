// Virtual time: events in order of time, and then in the order in which they were planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/time.hpp"

namespace sluice::sim {

class Events {
 public:
  Time now() const { return now_; }

  void at(Time when, std::function<void()> what) {
    heap_.push_back({std::max(when, now_), count_++, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void in(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }

  /// Moves the time to the next event and runs it; false if there is none.
  bool step() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.when;
    event.what();
    return true;
  }

 private:
  struct Event {
    Time when;
    std::uint64_t order;
    std::function<void()> what;
  };
  static bool later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }

  Time now_{};
  std::uint64_t count_ = 0;
  std::vector<Event> heap_;
};

}  // namespace sluice::sim
