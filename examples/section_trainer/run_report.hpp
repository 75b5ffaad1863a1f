// What the run tells its reader; only rank 0 speaks.
#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>

#include "examples/section_trainer/epoch_figures.hpp"
#include "examples/section_trainer/plan.hpp"
#include "examples/section_trainer/records.hpp"

namespace section_trainer {

class Report {
 public:
  Report(std::ostream& out, const Dataset& data, const Plan& plan, std::size_t ranks);

  void opening() const;
  /// Prints at most about once a second.
  void step(std::size_t epoch, std::size_t step, double loss);
  void epoch(std::size_t epoch, const Figures& totals);
  /// The run's totals against dense exchanges.
  void closing() const;

  double accuracy() const { return accuracy_; }              ///< held-out, after the last epoch
  double majority_share() const { return majority_share_; }  ///< of always the commonest section

 private:
  std::ostream& out_;
  const Dataset& data_;
  const Plan& plan_;
  std::size_t ranks_;
  std::size_t steps_;
  double majority_share_;
  double accuracy_ = 0;
  Figures run_{};
  std::chrono::steady_clock::time_point spoke_ = std::chrono::steady_clock::now();
};

}  // namespace section_trainer
