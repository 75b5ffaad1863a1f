#include <algorithm>

#include "examples/section_trainer/hash.hpp"
#include "examples/section_trainer/records.hpp"
#include "examples/section_trainer/table.hpp"

namespace section_trainer {
namespace {

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    if (is_letter_or_digit(c))
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

std::vector<std::uint32_t> features_of(std::string_view description) {
  const auto row = [](std::string_view text) { return std::uint32_t(hash(text) % kBuckets); };
  std::vector<std::uint32_t> features{row("")};
  std::string previous;
  for (const std::string& word : words_of(description)) {
    features.push_back(row(word));
    features.push_back(row(previous + ' ' + word));
    previous = word;
  }
  std::sort(features.begin(), features.end());
  features.erase(std::unique(features.begin(), features.end()), features.end());
  return features;
}

}  // namespace section_trainer
