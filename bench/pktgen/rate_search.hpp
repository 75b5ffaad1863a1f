// The search for the highest rate without loss, after RFC 2544 section 26.1: it bisects between the
// highest rate that passed and the lowest that did not.
#pragma once

#include <optional>

namespace sluice::pktgen {

class RateSearch {
 public:
  /// The result is in [highest / 1000, highest], with a relative error of at most `resolution`.
  explicit RateSearch(double highest, double resolution = 0.01)
      : failed_(highest), lowest_(highest / 1000), resolution_(resolution) {}

  /// The rate to try next; nothing once the result is known.
  std::optional<double> next() const {
    if (!tried_highest_) return failed_;
    if (failed_ < lowest_ || failed_ - passed_ <= resolution_ * failed_) return std::nullopt;
    return (passed_ + failed_) / 2;
  }

  /// Sets the outcome of the trial of next().
  void tell(bool without_loss) {
    const double tried = *next();
    tried_highest_ = true;
    (without_loss ? passed_ : failed_) = tried;
  }

  /// The highest rate that passed; 0 if none did.
  double best() const { return passed_; }

 private:
  double passed_ = 0;
  double failed_;
  double lowest_;
  double resolution_;
  bool tried_highest_ = false;
};

}  // namespace sluice::pktgen
