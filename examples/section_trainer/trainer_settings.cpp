#include "examples/section_trainer/trainer_settings.hpp"

#include <iostream>
#include <stdexcept>

#include <boost/program_options.hpp>

namespace section_trainer {
namespace {

namespace po = boost::program_options;

template <class T>
void require_in_range(const char* option, T value, T least, T most) {
  if (value >= least && value <= most) return;
  throw std::invalid_argument(std::string(option) + " is " + std::to_string(value) +
                              "; allowed are " + std::to_string(least) + " to " +
                              std::to_string(most));
}

po::options_description describe(Settings& settings) {
  Plan& plan = settings.plan;
  po::options_description options(
      "section-trainer: learns a Debian package's section from its description, on all ranks of a "
      "Sluice job (SLUICE_* tell it which)\n"
      "  ./scripts/local-cluster --workers 4 -- section-trainer --input FILE");
  auto add = options.add_options();
  add("help", "print this");
  add("input", po::value(&settings.input)->required(),
      "file of package records, as apt-cache dumpavail prints them");
  add("epochs", po::value(&plan.epochs)->default_value(plan.epochs), "passes over the records");
  add("batch", po::value(&plan.batch)->default_value(plan.batch),
      "records per step, over all ranks");
  add("learning-rate", po::value(&plan.learning_rate)->default_value(plan.learning_rate),
      "step size of the first epoch; falls to a tenth by the last");
  add("seed", po::value(&plan.seed)->default_value(plan.seed), "of the records' order");
  add("min-accuracy", po::value(&settings.min_accuracy)->default_value(0),
      "held-out accuracy, 0 to 1, below which the run counts as failed");
  return options;
}

}  // namespace

std::optional<Settings> parse_settings(int argc, char** argv) try {
  Settings settings;
  const po::options_description options = describe(settings);
  po::variables_map values;
  po::store(po::parse_command_line(argc, argv, options), values);
  if (values.count("help") != 0) {
    std::cout << options;
    return std::nullopt;
  }
  po::notify(values);
  require_in_range<std::size_t>("--epochs", settings.plan.epochs, 1, 1000);
  require_in_range<std::size_t>("--batch", settings.plan.batch, 1, 1'000'000);
  require_in_range("--learning-rate", settings.plan.learning_rate, 0.0f, 1e6f);
  require_in_range("--min-accuracy", settings.min_accuracy, 0.0, 1.0);
  return settings;
} catch (const po::error& error) {
  throw std::invalid_argument(error.what());
}

}  // namespace section_trainer
