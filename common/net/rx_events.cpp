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

void RxEvents::wait(Duration longest) {
  std::array<pollfd, kMax> waiting;
  for (std::size_t i = 0; i < count_; ++i) waiting[i] = {descriptors_[i], POLLIN, 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec at_most{seconds.count(), (longest - seconds).count()};
  if (ppoll(waiting.data(), count_, &at_most, nullptr) <= 0) return;
  for (std::size_t i = 0; i < count_; ++i) {
    if ((waiting[i].revents & POLLIN) == 0) continue;
    std::uint64_t frames;
    [[maybe_unused]] const auto taken = read(waiting[i].fd, &frames, sizeof frames);
  }
}

}  // namespace sluice::net
