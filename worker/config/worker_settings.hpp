// The settings as text, and checks of options that a program has set itself, with the same ranges
// as for the environment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/protocol/secret.hpp"

namespace sluice {

/// Both kinds of options: no two settings share a name.
struct Options {
  ContextOptions context = {};
  JobOptions job = {};
};

/// Calls ContextOptions::set or JobOptions::set, depending on the name.
void assign(Options& options, const std::string& name, const std::string& text);

/// One environment variable, for documentation.
struct VariableDescription {
  std::string name;     ///< "SLUICE_MTU"
  std::string option;   ///< "ContextOptions::mtu"
  std::string allowed;  ///< "0 or 576..9698"
  std::string unit;     ///< "bytes", or empty
  std::string default_value;
  std::string help;
};

/// All variables.
std::vector<VariableDescription> described_variables();

/// These throw kInvalidArgument with the setting's variable, value and range.
void validate(const ContextOptions& options);
void validate(const JobOptions& options);

/// Throws kInvalidArgument if a setting that `wanted` names differs from that of the open Context.
/// Settings from the environment and defaults do not count as named.
void check_agreement(const ContextOptions& wanted, const ContextOptions& open);

/// Reads `secret` or `secret_file`; null if there is neither. Throws kInvalidArgument, without the
/// secret in its text.
std::shared_ptr<const Secret> secret_of(const JobOptions& options);

}  // namespace sluice
