// A job's id as text: a number, or a name that stands for one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::config {

/// What parse_job() takes, for people.
inline constexpr const char* kJobForms =
    "0..4294967295, or a name of 1..64 printable ASCII characters without blanks that begins with a"
    " letter or a digit";

/// For digits, the number; for a name, the first 4 bytes, little-endian, of its BLAKE2b-256:
///   int.from_bytes(hashlib.blake2b(b"NAME", digest_size=32).digest()[:4], "little")
/// Nothing where the text is neither. Two names may have one id: among n names that happens with a
/// probability of about n^2 / 2^33.
std::optional<std::uint32_t> job_id_of(std::string_view text);

/// Whether it is a number: then only its value matters.
bool is_job_number(std::string_view text);

/// The same for a setting; throws must_be(setting, kJobForms, text).
std::uint32_t parse_job(std::string_view setting, std::string_view text);

}  // namespace sluice::config
