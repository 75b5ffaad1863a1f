#include <array>
#include <utility>

#include <sluice/error.hpp>
#include <sluice/types.hpp>

namespace sluice {
namespace {

constexpr std::array<std::pair<ElementType, std::string_view>, 9> kElementTypes{{
    {ElementType::kFloat32, "float"},
    {ElementType::kFloat64, "double"},
    {ElementType::kFloat16, "half"},
    {ElementType::kBFloat16, "bfloat16"},
    {ElementType::kInt32, "int32"},
    {ElementType::kInt64, "int64"},
    {ElementType::kInt8, "int8"},
    {ElementType::kUInt8, "uint8"},
    {ElementType::kInt16, "int16"},
}};

constexpr std::array<std::pair<Reduction, std::string_view>, 8> kReductions{{
    {Reduction::kSum, "sum"},
    {Reduction::kMin, "min"},
    {Reduction::kMax, "max"},
    {Reduction::kAverage, "avg"},
    {Reduction::kProduct, "prod"},
    {Reduction::kBitAnd, "band"},
    {Reduction::kBitOr, "bor"},
    {Reduction::kBitXor, "bxor"},
}};

constexpr std::array<std::pair<Encoding, std::string_view>, 5> kEncodings{{
    {Encoding::kNone, "none"},
    {Encoding::kFloat16, "half"},
    {Encoding::kBFloat16, "bfloat16"},
    {Encoding::kInt8, "int8"},
    {Encoding::kInt4, "int4"},
}};

template <class Table, class Value>
std::string_view find_name(const Table& table, Value value) {
  for (const auto& [candidate, text] : table)
    if (candidate == value) return text;
  return "?";
}

template <class Value, std::size_t n>
std::optional<Value> find_value(const std::array<std::pair<Value, std::string_view>, n>& table,
                                std::string_view name) {
  for (const auto& [value, text] : table)
    if (text == name) return value;
  return std::nullopt;
}

}  // namespace

std::string_view name(ElementType type) {
  return find_name(kElementTypes, type);
}
std::string_view name(Reduction reduction) {
  return find_name(kReductions, reduction);
}
std::string_view name(Encoding encoding) {
  return find_name(kEncodings, encoding);
}

std::optional<ElementType> parse_element_type(std::string_view name) {
  return find_value(kElementTypes, name);
}
std::optional<Reduction> parse_reduction(std::string_view name) {
  return find_value(kReductions, name);
}
std::optional<Encoding> parse_encoding(std::string_view name) {
  return find_value(kEncodings, name);
}

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kAggregatorLost:
      return "aggregator lost";
    case ErrorCode::kWorkerLost:
      return "worker lost";
    case ErrorCode::kFormationFailed:
      return "formation failed";
    case ErrorCode::kOpMismatch:
      return "op mismatch";
    case ErrorCode::kRankLeft:
      return "rank left";
    case ErrorCode::kRankRestarted:
      return "rank restarted";
    case ErrorCode::kQuota:
      return "quota";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kProtocol:
      return "protocol";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kNotAuthenticated:
      return "not authenticated";
    case ErrorCode::kOpTimedOut:
      return "op timed out";
  }
  return "?";
}

}  // namespace sluice
