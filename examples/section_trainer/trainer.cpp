#include "examples/section_trainer/trainer.hpp"

#include <chrono>

namespace section_trainer {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(sluice::Communicator& job, const Dataset& data, const Plan& plan)
    : job_(job), data_(data), plan_(plan) {
  if (job.block_elements(sluice::ElementType::kFloat32) != kColumns)
    throw sluice::Error(sluice::ErrorCode::kInvalidArgument,
                        "the section trainer needs packets that hold a block of " +
                            std::to_string(kColumns) + " floats; raise SLUICE_MTU");
}

void Trainer::run(const StepDone& step_done, const EpochDone& epoch_done) {
  const std::size_t steps = plan_.steps(data_.train.size());
  for (std::size_t epoch = 0; epoch < plan_.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    const auto order = plan_.shuffled(data_.train.size(), epoch);
    Figures figures{};
    for (std::size_t step = 0; step < steps; ++step) {
      const auto batch = batch_of(order, step, plan_.batch);
      const double loss = collect(batch);
      exchange(figures);
      apply_and_clear(gradient_, plan_.rate(epoch), weights_);
      figures[kLoss] += loss;
      step_done(epoch, step, loss * job_.world_size() / double(batch.size()));
    }
    figures[kCorrect] = count_correct();
    figures[kComputeSeconds] = seconds_since(start) - figures[kExchangeSeconds];
    job_.all_reduce(std::span<double>(figures)).wait();
    epoch_done(epoch, figures);
  }
}

/// This rank's part of the batch's gradient; returns the summed loss of its records.
double Trainer::collect(std::span<const std::uint32_t> batch) {
  double loss = 0;
  for (const std::uint32_t i : share_of(batch, job_.rank(), job_.world_size()))
    loss += add_gradient(data_.train[i], weights_, data_.sections.size(),
                         1.0f / float(batch.size()), gradient_);
  return loss;
}

/// Turns this rank's gradient into the sum over all ranks.
void Trainer::exchange(Figures& figures) {
  const auto start = std::chrono::steady_clock::now();
  sluice::ReduceOptions options;
  options.nonzero_blocks = gradient_.rows.words();  // a row is a block
  const sluice::Work work = job_.all_reduce(gradient_.table.tensor(), options);
  work.wait();
  add_statistics(work.statistics(), figures);
  figures[kExchangeSeconds] += seconds_since(start);
}

/// How many of this rank's share of the held-out records the model gets right.
double Trainer::count_correct() const {
  double correct = 0;
  for (const Record& record : share_of(std::span(data_.held_out), job_.rank(), job_.world_size()))
    if (predict(record, weights_, data_.sections.size()) == record.section) ++correct;
  return correct;
}

}  // namespace section_trainer
