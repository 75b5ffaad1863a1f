// section-trainer: a real model trained on real input through Sluice's public API. Exit status 0
// only when all ranks end with the same weights, those of a single-process run, and predict well.
#include <cmath>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include <sluice/sluice.hpp>

#include "examples/section_trainer/run_report.hpp"
#include "examples/section_trainer/trainer.hpp"
#include "examples/section_trainer/trainer_settings.hpp"
#include "examples/section_trainer/verdict.hpp"

namespace section_trainer {
namespace {

Dataset load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("--input: cannot read " + path);
  Dataset data = read_records(file);
  if (data.train.empty() || data.held_out.empty())
    throw std::invalid_argument(
        "--input: too few package records with description and section in " + path);
  return data;
}

sluice::JobOptions job_options() {
  sluice::JobOptions options = sluice::JobOptions::from_environment();
  options.block_elements = kColumns;
  return options;
}

std::string percent(double share) {
  return std::to_string(std::lround(1000 * share) / 10) + "." +
         std::to_string(std::lround(1000 * share) % 10) + " %";
}

bool predicts_well(const Report& report, double min_accuracy, std::ostream& out) {
  const bool good = report.accuracy() >= min_accuracy;
  out << "held-out accuracy " << percent(report.accuracy()) << ": " << (good ? "good" : "TOO LOW")
      << " (demanded " << percent(min_accuracy) << "; the commonest section alone "
      << percent(report.majority_share()) << ")" << std::endl;
  return good;
}

bool train_and_check(const Settings& settings) {
  const Dataset data = load(settings.input);
  sluice::Context context(sluice::ContextOptions::from_environment());
  sluice::Communicator job(context, job_options());

  std::ostream silence(nullptr);
  std::ostream& out = job.rank() == 0 ? std::cout : silence;
  Report report(out, data, settings.plan, job.world_size());
  report.opening();
  Trainer trainer(job, data, settings.plan);
  trainer.run([&](auto epoch, auto step, double loss) { report.step(epoch, step, loss); },
              [&](auto epoch, const Figures& totals) { report.epoch(epoch, totals); });
  report.closing();

  const bool good = predicts_well(report, settings.min_accuracy, out);
  const bool equal = weights_equal_on_all_ranks(job, trainer.weights(), out);
  const bool match = weights_match_single_process(job, trainer.weights(), data, settings.plan, out);
  job.leave();
  return good && equal && match;
}

}  // namespace
}  // namespace section_trainer

int main(int argc, char** argv) try {
  const auto settings = section_trainer::parse_settings(argc, argv);
  return !settings || section_trainer::train_and_check(*settings) ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "section-trainer: " << error.what() << std::endl;
  return 1;
}
