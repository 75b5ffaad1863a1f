// The program's command line.
#pragma once

#include <optional>
#include <string>

#include "examples/section_trainer/plan.hpp"

namespace section_trainer {

struct Settings {
  std::string input;
  double min_accuracy = 0;  ///< 0..1
  Plan plan;
};

/// None when help was asked for and printed. Throws std::invalid_argument naming what is wrong.
std::optional<Settings> parse_settings(int argc, char** argv);

}  // namespace section_trainer
