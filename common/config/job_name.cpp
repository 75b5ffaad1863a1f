#include "common/config/job_name.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include <sodium.h>

#include "common/base/limits.hpp"
#include "common/config/value.hpp"

namespace sluice::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// So begins neither a comment of a file of secrets, nor its '*', nor a negative number.
bool is_job_name(std::string_view text) {
  return !text.empty() && text.size() <= limits::kMaxJobNameBytes &&
         (is_digit(text.front()) || is_letter(text.front())) &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

std::uint32_t hash_of(std::string_view name) {
  std::array<unsigned char, 32> digest;
  crypto_generichash(digest.data(), digest.size(),
                     reinterpret_cast<const unsigned char*>(name.data()), name.size(), nullptr, 0);
  return digest[0] | std::uint32_t{digest[1]} << 8 | std::uint32_t{digest[2]} << 16 |
         std::uint32_t{digest[3]} << 24;
}

}  // namespace

bool is_job_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

std::optional<std::uint32_t> job_id_of(std::string_view text) {
  if (!is_job_number(text)) return is_job_name(text) ? std::optional(hash_of(text)) : std::nullopt;
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc{} ? std::optional(number) : std::nullopt;
}

std::uint32_t parse_job(std::string_view setting, std::string_view text) {
  if (const auto id = job_id_of(text)) return *id;
  throw must_be(setting, kJobForms, text);
}

}  // namespace sluice::config
