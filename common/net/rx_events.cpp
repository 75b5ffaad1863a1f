#include "common/net/rx_events.hpp"

#include <cstdint>
#include <ctime>

#include <poll.h>
#include <unistd.h>

namespace sluice::net {

bool RxEvents::add(int descriptor) {
  if (count_ == kMax) return false;
  descriptors_[count_++] = descriptor;
  return true;
}

void RxEvents::clear_past() const {
  for (std::size_t i = 0; i < count_; ++i) {
    std::uint64_t frames;
    [[maybe_unused]] const auto taken = read(descriptors_[i], &frames, sizeof frames);
  }
}

void RxEvents::wait(Duration longest) const {
  std::array<pollfd, kMax> waiting;
  for (std::size_t i = 0; i < count_; ++i) waiting[i] = {descriptors_[i], POLLIN, 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec at_most{seconds.count(), (longest - seconds).count()};
  ppoll(waiting.data(), count_, &at_most, nullptr);
}

}  // namespace sluice::net
