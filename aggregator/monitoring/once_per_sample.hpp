// A text that is made of a sample: once, however many threads ask for it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace sluice::aggregator {

template <class Sample>
class OncePerSample {
 public:
  /// Of the latest sample, as latest() tells it: a shared_ptr. make(sample) is called by one thread
  /// at a time, only if the last text was of another sample; who else asks meanwhile waits for it.
  template <class Latest, class Make>
  std::shared_ptr<const std::string> text(Latest latest, Make make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Sample> sample = latest();
    if (!text_ || sample != of_) {
      text_ = std::make_shared<const std::string>(make(*sample));
      of_ = std::move(sample);
    }
    return text_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const Sample> of_;  // kept, so that no other one gets its address
  std::shared_ptr<const std::string> text_;
};

}  // namespace sluice::aggregator
