#include "bench/lib/peers/sparse/sparse_flags.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <utility>

#include "bench/lib/peers/sparse/algorithm.hpp"

namespace sparse {
namespace {

constexpr std::uint32_t kElementsMax = 0x7FFFFFFF;  // MPI counts in int
constexpr std::uint32_t kIterationsMax = 1'000'000;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

[[noreturn]] void refuse(const std::string& flag, const std::string& value,
                         const std::string& expected) {
  throw UsageError(flag + " " + value + ": expected " + expected);
}

template <class Number>
Number number(const std::string& flag, const std::string& text, Number least, Number most) {
  Number parsed{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stop != end || !(parsed >= least && parsed <= most)) {
    std::ostringstream expected;
    expected << "a number from " << least << " to " << most;
    refuse(flag, text, expected.str());
  }
  return parsed;
}

template <class Value>
Value choice(const std::string& flag, const std::string& text,
             const std::vector<std::pair<std::string, Value>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names.push_back(name);
  }
  refuse(flag, text, "one of " + joined(names));
}

std::vector<std::string> algorithms(const std::string& flag, const std::string& text) {
  const std::vector<std::string> known = algorithm_names();
  std::vector<std::string> chosen;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::find(known.begin(), known.end(), word) == known.end())
      refuse(flag, word, "some of " + joined(known));
    chosen.push_back(word);
  }
  if (chosen.empty()) refuse(flag, "''", "some of " + joined(known));
  return chosen;
}

void set(Flags& flags, const std::string& flag, const std::string& text) {
  if (flag == "--algorithms") {
    flags.algorithms = algorithms(flag, text);
  } else if (flag == "--elements") {
    flags.elements = number<std::uint32_t>(flag, text, 1, kElementsMax);
  } else if (flag == "--density") {
    flags.density = number<double>(flag, text, 1e-9, 1);
  } else if (flag == "--keys") {
    flags.keys = choice<Keys>(flag, text, {{"random", Keys::kRandom}, {"zipf", Keys::kZipf}});
  } else if (flag == "--check") {
    flags.checks = choice<Checks>(
        flag, text, {{"none", Checks::kNone}, {"last", Checks::kLast}, {"every", Checks::kEvery}});
  } else if (flag == "--seed") {
    flags.seed = number<std::uint64_t>(flag, text, 0, UINT64_MAX);
  } else if (flag == "--iterations") {
    flags.iterations = number<std::uint32_t>(flag, text, 1, kIterationsMax);
  } else if (flag == "--warmup") {
    flags.warmup = number<std::uint32_t>(flag, text, 0, kIterationsMax);
  } else if (flag == "--first") {
    flags.first = number<std::uint32_t>(flag, text, 0, kIterationsMax);
  } else if (flag == "--tau") {
    flags.tau = number<std::uint32_t>(flag, text, 1, kIterationsMax);
  } else if (flag == "--tau-prime") {
    flags.tau_prime = number<std::uint32_t>(flag, text, 1, kIterationsMax);
  } else {
    refuse(flag, text,
           "--algorithms, --elements, --density, --keys, --check, --seed, --iterations, --warmup,"
           " --first, --tau, --tau-prime or --self-test");
  }
}

}  // namespace

Flags parse_flags(int count, char** words) {
  Flags flags;
  for (int i = 1; i < count; ++i) {
    const std::string flag = words[i];
    if (flag == "--self-test") {
      flags.self_test = true;
      continue;
    }
    if (i + 1 == count) refuse(flag, "", "a value after it");
    set(flags, flag, words[++i]);
  }
  if (flags.algorithms.empty()) flags.algorithms = algorithm_names();
  return flags;
}

std::size_t pairs_of_density(const Flags& flags) {
  return std::max<std::size_t>(1, std::size_t(flags.density * double(flags.elements) + 0.5));
}

}  // namespace sparse
