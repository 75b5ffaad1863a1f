// Where the daemon's settings come from: Boost.Program_options takes the command line and the file
// apart, the table of settings gives the texts their meaning.
#include "common/config/aggregator_config.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include <boost/program_options.hpp>

#include "common/base/version.hpp"
#include "common/config/aggregator_settings.hpp"
#include "common/config/lane_count.hpp"
#include "common/config/nearest_name.hpp"
#include "common/config/value.hpp"
#include "common/config/variable_names.hpp"

namespace sluice::config {
namespace {

namespace po = boost::program_options;

struct Text {
  std::string value;
  std::string origin;
};

/// What one place (flags, environment, file) says, by setting.
using Texts = std::map<std::string, std::vector<Text>>;

constexpr unsigned kLineLength = 100;
constexpr unsigned kDescriptionLength = 66;

po::options_description described_settings() {
  po::options_description all(kLineLength, kDescriptionLength);
  const auto& settings = aggregator_settings();
  for (auto setting = settings.begin(); setting != settings.end();) {
    const std::string& caption = setting->group;
    po::options_description group(caption, kLineLength, kDescriptionLength);
    for (; setting != settings.end() && setting->group == caption; ++setting) {
      auto* const value = po::value<std::string>();
      if (setting->value.is_switch) value->implicit_value("on");
      group.add_options()(setting->name.c_str(), value,
                          (setting->help + " " + range_and_default(*setting)).c_str());
    }
    all.add(group);
  }
  return all;
}

po::options_description described_flags() {
  po::options_description flags("Command", kLineLength, kDescriptionLength);
  auto add = flags.add_options();
  for (const CommandFlag& flag : command_flags())
    if (*flag.argument == '\0')
      add(flag.name, flag.help);
    else
      add(flag.name, po::value<std::string>()->value_name(flag.argument), flag.help);
  return flags.add(described_settings());
}

std::string help_text() {
  std::ostringstream out;
  out << "Usage: sluice-aggregator [SETTINGS] [-- EAL ARGUMENTS]\n"
         "Sums the non-zero blocks of tensors as workers send them.\n\n"
         "A setting is a flag (--udp-port 4748), else an environment variable\n"
         "(SLUICE_AGGREGATOR_UDP_PORT=4748), else a line of the file named by --config\n"
         "(udp-port = 4748; # begins a comment), else its default. Those marked reloadable may\n"
         "change while it runs: SIGHUP makes it read all of them again.\n\n"
      << described_flags();
  return out.str();
}

std::string unknown(const std::string& kind, const std::string& name,
                    const po::options_description& known) {
  std::vector<std::string> names;
  for (const auto& option : known.options()) names.push_back(option->long_name());
  const auto nearest = nearest_name(name, names);
  return "unknown " + kind + " '" + name + "'" +
         (nearest ? ": did you mean '" + *nearest + "'?" : ": --help lists all settings");
}

Texts texts_of_flags(const std::vector<std::string>& arguments) {
  namespace style = po::command_line_style;
  const po::options_description flags = described_flags();
  Texts texts;
  try {
    const auto parsed = po::command_line_parser(arguments)
                            .options(flags)
                            .style(style::default_style & ~style::allow_guessing)
                            .allow_unregistered()
                            .run();
    for (const po::option& option : parsed.options) {
      if (option.string_key.empty())
        fail("unexpected argument '" + option.value.front() + "': settings are --NAME VALUE");
      if (option.unregistered) fail(unknown("flag", option.string_key, flags));
      texts[option.string_key].push_back(
          {option.value.empty() ? "on" : option.value.front(), "flag --" + option.string_key});
    }
  } catch (const po::error& error) {
    fail(std::string("command line: ") + error.what());
  }
  return texts;
}

/// The variables that give settings, by setting.
std::map<std::string, std::string> variables() {
  std::map<std::string, std::string> all{{"config", variable_of("config")}};
  for (const AggregatorSetting& setting : aggregator_settings())
    all[setting.name] = variable_of(setting.name);
  return all;
}

Texts texts_of_environment(const Environment& environment) {
  Texts texts;
  for (const auto& [name, variable] : variables())
    if (const auto value = environment(variable))
      texts[name].push_back({*value, "variable " + variable});
  return texts;
}

/// The value of NAME = "VALUE", where a backslash is before each " and \ of it: of other lines,
/// nothing.
std::optional<std::string> quoted_value(const std::string& line) {
  const std::size_t equals = std::min(line.find('='), line.find('#'));
  const std::size_t begin =
      line.find_first_not_of(kBlanks, equals == line.npos ? equals : equals + 1);
  if (begin == line.npos || line[equals] != '=' || line[begin] != '"') return std::nullopt;
  std::string value;
  std::size_t at = begin + 1;
  for (; at < line.size() && line[at] != '"'; ++at) {
    if (line[at] == '\\' && ++at == line.size()) return std::nullopt;
    value += line[at];
  }
  const std::size_t rest = line.find_first_not_of(kBlanks, at + 1);
  const bool ends = at < line.size() && (rest == line.npos || line[rest] == '#');
  return ends ? std::optional(value) : std::nullopt;
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

// Line by line, because Boost does not tell the number of a line.
Texts texts_of_file(const Text& path) {
  const std::string asked_by = " (" + path.origin + ")";
  std::error_code ignored;
  std::ifstream file(path.value);
  if (!file || std::filesystem::is_directory(path.value, ignored))
    fail("config = '" + path.value + "'" + asked_by + ": must be a file that this user can read");
  const po::options_description settings = described_settings();
  Texts texts;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string origin = path.value + ":" + std::to_string(number);
    try {
      if (text.starts_with('[')) throw po::error("no sections");  // Boost would skip it
      const auto in_quotes = quoted_value(text);
      std::istringstream line(in_quotes ? text.substr(0, text.find('"')) : text);
      for (const po::option& option : po::parse_config_file(line, settings, true).options) {
        if (option.unregistered)
          fail(origin + ": " + unknown("setting", option.string_key, settings));
        texts[option.string_key].push_back({in_quotes.value_or(option.value.front()), origin});
      }
    } catch (const po::error&) {
      fail(origin + ": must be NAME = VALUE, not '" + text + "'");
    }
  }
  return texts;
}

const Text* first_of(const Texts& texts, const std::string& name) {
  const auto found = texts.find(name);
  return found == texts.end() ? nullptr : &found->second.front();
}

/// The settings' values with their origins, from places in the order of precedence.
class Settings {
 public:
  explicit Settings(std::vector<Texts> places) : places_(std::move(places)) {}

  std::string origin_of(const std::string& name) const {
    for (const Texts& place : places_)
      if (const Text* text = first_of(place, name)) return text->origin;
    return "default";
  }

  SecretStore secrets(const AggregatorConfig& config, const Environment& environment) const {
    try {
      return aggregator_secrets(config.secret_file, environment);
    } catch (const Error& error) {
      const std::string origin =
          config.secret_file.empty() ? "" : " (" + origin_of("secret-file") + ")";
      fail(error.what() + origin);
    }
  }

  /// The origins of a setting's values, in their order; none for values that no text gave.
  std::vector<std::string> origins_of_values(const AggregatorSetting& setting) const {
    std::vector<std::string> origins;
    for (const Text& text : texts_of(setting)) {
      AggregatorConfig alone;
      if (setting.value.clear) setting.value.clear(alone);
      assign(setting, text, alone);
      origins.insert(origins.end(), setting.value.show(alone).size(), text.origin);
    }
    return origins;
  }

  void assign_to(AggregatorConfig& config) const {
    for (const Texts& place : places_) refuse_repetition(place);
    for (const AggregatorSetting& setting : aggregator_settings())
      for (const Text& text : texts_of(setting)) assign(setting, text, config);
  }

 private:
  static bool is_list(const std::string& name) {
    const auto& settings = aggregator_settings();
    return std::any_of(settings.begin(), settings.end(), [&](const AggregatorSetting& setting) {
      return setting.name == name && setting.value.is_list;
    });
  }

  static void refuse_repetition(const Texts& place) {
    for (const auto& [name, texts] : place)
      if (texts.size() > 1 && !is_list(name))
        fail(name + " must be set once, not as '" + texts[0].value + "' (" + texts[0].origin +
             ") and as '" + texts[1].value + "' (" + texts[1].origin + ")");
  }

  /// Those of the place that wins.
  std::vector<Text> texts_of(const AggregatorSetting& setting) const {
    for (const Texts& place : places_)
      if (const auto found = place.find(setting.name); found != place.end()) return found->second;
    return {};
  }

  static void assign(const AggregatorSetting& setting, const Text& text, AggregatorConfig& config) {
    try {
      setting.value.assign(config, setting.name, text.value);
    } catch (const Error& error) {
      fail(std::string(error.what()) + " (" + text.origin + ")");
    }
  }

  std::vector<Texts> places_;
};

/// Whether a line of a file can have the value: blanks separate the values of a list.
bool fits_a_line(const AggregatorSetting& setting, const std::string& value) {
  return value.find('\n') == value.npos &&
         (!setting.value.is_list || value.find_first_of(kBlanks) == value.npos);
}

/// As a line of a file has it: # begins a comment there, and blanks at the ends are dropped.
std::string in_a_line(const std::string& value) {
  const bool is_plain = value.find('#') == value.npos && value.front() != '"' &&
                        kBlanks.find(value.front()) == kBlanks.npos &&
                        kBlanks.find(value.back()) == kBlanks.npos;
  return is_plain ? value : quoted(value);
}

/// The lines of a config file that has the same effect. What has no value is named in a comment.
std::string effective_settings(const AggregatorConfig& config, const Settings& settings) {
  std::ostringstream out;
  for (const AggregatorSetting& setting : aggregator_settings()) {
    std::vector<std::string> values = setting.value.show(config);
    std::erase(values, "");
    auto origins = settings.origins_of_values(setting);
    if (origins.empty()) origins.assign(setting.value.show({}).size(), "default");
    origins.resize(values.size(), "command line, after --");
    for (std::size_t i = 0; i < values.size(); ++i)
      if (fits_a_line(setting, values[i]))
        out << setting.name << " = " << in_a_line(values[i]) << "  # " << origins[i] << "\n";
      else
        out << "# " << setting.name << " has a value that a file cannot have: " << origins[i]
            << "\n";
    if (values.empty())
      out << "# " << setting.name << " =  # " << settings.origin_of(setting.name) << "\n";
  }
  return out.str();
}

const std::string kTitle = std::string("# sluice-aggregator ") + version() + ": ";

std::string printed(const AggregatorConfig& config, const Settings& settings) {
  return kTitle + "the settings in effect\n" + effective_settings(config, settings);
}

std::string checked(const AggregatorConfig& config, const SecretStore& secrets,
                    const Settings& settings) {
  std::ostringstream out;
  out << kTitle << "the settings are valid; in effect are\n"
      << effective_settings(config, settings) << "# lanes: " << config.lanes << ", "
      << config.why_lanes << "\n# packet memory: " << packet_memory_mib(config) << " MiB\n# "
      << secrets.describe() << "\n";
  return out.str();
}

std::string in_comments(const std::vector<std::string>& warnings) {
  std::string lines;
  for (const std::string& warning : warnings) lines += "# " + warning + "\n";
  return lines;
}

}  // namespace

const std::vector<CommandFlag>& command_flags() {
  static const std::vector<CommandFlag> flags{
      {"config", "FILE", "Read settings from this file."},
      {"check-config", "", "Check the settings as at the start, print those in effect, and exit."},
      {"print-config", "",
       "Print the settings in effect and where each comes from, in the form of the file that"
       " --config takes, and exit. Each is checked by itself only."},
      {"help,h", "", "Print this text and exit."},
      {"version", "", "Print version and build, and exit."},
  };
  return flags;
}

bool computes_integrity(const AggregatorConfig& config) {
  return config.integrity == Integrity::kOn ||
         (config.integrity == Integrity::kAuto && !config.ports.empty());
}

ParseOutcome parse_aggregator(int argc, const char* const* argv, const Environment& environment,
                              const std::vector<std::string>& variable_names, const Cores& cores) {
  using Action = ParseOutcome::Action;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const std::vector<std::string> flags(arguments.begin(), separator);

  std::vector<Texts> places{texts_of_flags(flags), texts_of_environment(environment)};
  if (first_of(places[0], "help")) return {Action::kHelp, {}, {}, help_text(), {}};
  if (first_of(places[0], "version"))
    return {Action::kVersion, {}, {}, version_line("sluice-aggregator"), {}};
  const std::vector<std::string> warnings = check_variable_names(variable_names);
  const bool check_only = first_of(places[0], "check-config") != nullptr;
  const bool print_only = !check_only && first_of(places[0], "print-config") != nullptr;

  const Text* file = first_of(places[0], "config");
  if (file == nullptr) file = first_of(places[1], "config");
  if (file != nullptr) places.push_back(texts_of_file(Text(*file)));

  const Settings settings(std::move(places));
  AggregatorConfig config;
  settings.assign_to(config);
  if (separator != arguments.end())
    config.eal_args.insert(config.eal_args.end(), separator + 1, arguments.end());
  if (print_only)
    return {Action::kPrint, config, {}, printed(config, settings) + in_comments(warnings), {}};
  config.cores = cores;
  LaneCount counted = count_lanes(config);
  config.lanes = counted.lanes;
  config.why_lanes = std::move(counted.why);
  SecretStore secrets = settings.secrets(config, environment);
  check_together(config, secrets,
                 [&](const std::string& name) { return settings.origin_of(name); });
  if (check_only) {
    std::string text = checked(config, secrets, settings) + in_comments(warnings);
    return {Action::kCheck, config, std::move(secrets), std::move(text), {}};
  }
  return {Action::kRun, config, std::move(secrets), {}, warnings};
}

}  // namespace sluice::config
