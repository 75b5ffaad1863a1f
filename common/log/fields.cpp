#include "common/log/fields.hpp"

#include <utility>

namespace sluice {
namespace {

thread_local const LogFields* current_fields = nullptr;

}  // namespace

LogContext::LogContext(LogFields fields)
    : fields_(std::move(fields)), outer_(std::exchange(current_fields, &fields_)) {}

LogContext::~LogContext() {
  current_fields = outer_;
}

std::span<const LogField> LogContext::current() {
  if (current_fields == nullptr) return {};
  return *current_fields;
}

}  // namespace sluice
