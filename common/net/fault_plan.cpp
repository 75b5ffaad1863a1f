#include "common/net/fault_plan.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include <sluice/error.hpp>

namespace sluice::net {
namespace {

template <class T>
bool read_number(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

bool read_probability(std::string_view text, double& value) {
  return read_number(text, value) && value >= 0 && value <= 1;
}

bool read_direction(std::string_view text, FaultPlan& plan) {
  plan.receiving = text == "rx" || text == "both";
  plan.sending = text == "tx" || text == "both";
  return plan.receiving || plan.sending;
}

bool read_item(std::string_view item, FaultPlan& plan) {
  const std::size_t equals = item.find('=');
  if (equals == item.npos) return false;
  const std::string_view key = item.substr(0, equals);
  const std::string_view value = item.substr(equals + 1);
  if (key == "seed") return read_number(value, plan.seed);
  if (key == "loss") return read_probability(value, plan.loss);
  if (key == "duplicate") return read_probability(value, plan.duplicate);
  if (key == "reorder") return read_probability(value, plan.reorder);
  if (key == "flip") return read_probability(value, plan.flip);
  if (key == "overtaking") return read_number(value, plan.overtaking) && plan.overtaking >= 1;
  if (key == "direction") return read_direction(value, plan);
  return false;
}

}  // namespace

FaultPlan parse_faults(std::string_view text, std::string_view name) {
  FaultPlan plan;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (!read_item(text.substr(begin, end - begin), plan))
      throw Error(
          ErrorCode::kInvalidArgument,
          std::string(name) +
              " must be a list of seed=N, loss=P, duplicate=P, reorder=P, flip=P (P: 0..1), "
              "overtaking=1..65535 and direction=rx|tx|both, not '" +
              std::string(text) + "'");
    begin = end + 1;
  }
  return plan;
}

}  // namespace sluice::net
