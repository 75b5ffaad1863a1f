// The settings as text, and the check of options that a program filled in by itself, with the
// ranges of the environment's.
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

/// ContextOptions::set or JobOptions::set, whichever has the name.
void assign(Options& options, const std::string& name, const std::string& text);

/// One environment variable, for whoever documents them.
struct VariableDescription {
  std::string name;     ///< "SLUICE_MTU"
  std::string option;   ///< "ContextOptions::mtu"
  std::string allowed;  ///< "0 or 576..9698"
  std::string unit;     ///< "bytes", or empty
  std::string default_value;
  std::string help;
};

/// All of them.
std::vector<VariableDescription> described_variables();

/// Throw kInvalidArgument with the setting's variable, value and range.
void validate(const ContextOptions& options);
void validate(const JobOptions& options);

/// Throws kInvalidArgument where `wanted` names another setting than the Context that is open has;
/// the environment's and the defaults do not count as named.
void check_agreement(const ContextOptions& wanted, const ContextOptions& open);

/// From `secret` or `secret_file`; null where there is neither. Throws kInvalidArgument, without
/// the secret.
std::shared_ptr<const Secret> secret_of(const JobOptions& options);

}  // namespace sluice
