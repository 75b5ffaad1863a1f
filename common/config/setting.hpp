// One row of a table of settings: a member of a Config, the values it may have, and how they are
// read from and written as text. Parsing, range checks, help and the dump of effective values are
// all made from such rows, so they cannot disagree.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/config/choices.hpp"
#include "common/config/value.hpp"

namespace sluice::config {

/// The type of a setting, bound to a member of Config.
template <class Config>
struct Value {
  std::string allowed;                  ///< for people: "1..32", "auto|on|off"
  std::optional<IntegerRange> range;    ///< of integers
  std::vector<std::string> words = {};  ///< all that are allowed, if they are a few
  bool is_switch = false;               ///< a flag without a value turns it on
  bool is_list = false;                 ///< may be repeated; each `assign` appends

  /// Parses `text` into the member; throws must_be(name, allowed, text).
  std::function<void(Config&, std::string_view name, std::string_view text)> assign;

  /// For a list: removes all entries.
  std::function<void(Config&)> clear = {};

  /// What `assign` reads back: one text, or for lists one per entry.
  std::function<std::vector<std::string>(const Config&)> show;
};

template <class Config>
struct Setting {
  std::string group;
  std::string name;
  std::string unit;  ///< "ms", or empty
  Value<Config> value;
  std::string help;
  bool reloadable = false;  ///< may change while the process runs
};

/// An integer, or a std::chrono duration counted in its own unit.
template <class Config, class T>
Value<Config> integer(T Config::*member, IntegerRange range) {
  return {.allowed = describe(range),
          .range = range,
          .assign =
              [=](Config& config, std::string_view name, std::string_view text) {
                config.*member = T(parse_integer(name, range, text));
              },
          .show = [=](const Config& config) -> std::vector<std::string> {
            if constexpr (std::is_arithmetic_v<T>)
              return {std::to_string(config.*member)};
            else
              return {std::to_string((config.*member).count())};
          }};
}

template <class Config>
Value<Config> on_off(bool Config::*member) {
  return {.allowed = "on|off",
          .range = {},
          .words = {"on", "off"},
          .is_switch = true,
          .assign = [=](Config& config, std::string_view name,
                        std::string_view text) { config.*member = parse_switch(name, text); },
          .show = [=](const Config& config) -> std::vector<std::string> {
            return {config.*member ? "on" : "off"};
          }};
}

template <class Config, class T, std::size_t n>
Value<Config> choice(T Config::*member, const Choices<T, n>& choices) {
  return {
      .allowed = describe(choices),
      .range = {},
      .words = words_of(choices),
      .assign = [=](Config& config, std::string_view name,
                    std::string_view text) { config.*member = parse_choice(name, choices, text); },
      .show = [=](const Config& config) -> std::vector<std::string> {
        return {std::string(word_of(choices, config.*member))};
      }};
}

/// A text that `check(name, text)`, if given, does not throw at.
using TextCheck = std::function<void(std::string_view name, std::string_view text)>;

template <class Config>
Value<Config> text(std::string Config::*member, std::string allowed, TextCheck check = {}) {
  return {.allowed = std::move(allowed),
          .range = {},
          .assign =
              [=](Config& config, std::string_view name, std::string_view text) {
                if (check) check(name, text);
                config.*member = text;
              },
          .show = [=](const Config& config) { return std::vector<std::string>{config.*member}; }};
}

/// A text that is one of the words.
template <class Config, class T, std::size_t n>
Value<Config> word(std::string Config::*member, const Choices<T, n>& choices) {
  Value<Config> value = text(
      member, describe(choices),
      [=](std::string_view name, std::string_view given) { parse_choice(name, choices, given); });
  value.words = words_of(choices);
  return value;
}

/// Texts, separated by blanks and `separator`.
template <class Config>
Value<Config> list(std::vector<std::string> Config::*member, std::string allowed,
                   char separator = ' ', TextCheck check = {}) {
  return {.allowed = std::move(allowed),
          .range = {},
          .is_list = true,
          .assign =
              [=](Config& config, std::string_view name, std::string_view text) {
                for (std::string& part : split(text, separator)) {
                  if (check) check(name, part);
                  (config.*member).push_back(std::move(part));
                }
              },
          .clear = [=](Config& config) { (config.*member).clear(); },
          .show = [=](const Config& config) { return config.*member; }};
}

}  // namespace sluice::config
