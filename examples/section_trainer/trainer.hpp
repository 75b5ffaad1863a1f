// Synchronous SGD: each rank takes its share of every global batch, Sluice sums the gradients, and
// all ranks take the same step. No rank ever sees another's weights: they stay equal because the
// summed gradients are the same bytes everywhere.
#pragma once

#include <functional>

#include <sluice/sluice.hpp>

#include "examples/section_trainer/epoch_figures.hpp"
#include "examples/section_trainer/model.hpp"
#include "examples/section_trainer/plan.hpp"

namespace section_trainer {

class Trainer {
 public:
  /// Called on every rank after each epoch, with the totals over all ranks.
  using EpochDone = std::function<void(std::size_t epoch, const Figures& totals)>;
  /// Called after each step; `loss` is the mean over this rank's share of the batch.
  using StepDone = std::function<void(std::size_t epoch, std::size_t step, double loss)>;

  /// `job` must exchange blocks of kColumns floats; `data` and `plan` are the same on all ranks.
  Trainer(sluice::Communicator& job, const Dataset& data, const Plan& plan);

  void run(const StepDone& step_done, const EpochDone& epoch_done);
  const Table& weights() const { return weights_; }

 private:
  double collect(std::span<const std::uint32_t> batch);
  void exchange(Figures& figures);
  double count_correct() const;

  sluice::Communicator& job_;
  const Dataset& data_;
  const Plan& plan_;
  Table weights_;
  Gradient gradient_;
};

}  // namespace section_trainer
