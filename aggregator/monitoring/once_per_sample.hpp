// A text that is made from a sample once, for any number of threads.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace sluice::aggregator {

template <class Sample>
class OncePerSample {
 public:
  /// The text of the latest sample. latest() returns this sample as a shared_ptr. make(sample) is
  /// called only if the last text was of another sample, by one thread at a time; other callers
  /// wait.
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
  std::shared_ptr<const Sample> of_;  // kept, so that no other sample gets its address
  std::shared_ptr<const std::string> text_;
};

}  // namespace sluice::aggregator
