// spdlog's logger, but quick to compile: with spdlog's headers each file that logs would compile
// all of fmt's formatting. Here only logger.cpp does. A version of fmt other than 9 may declare it
// differently, and is then included normally.
#pragma once

#include <spdlog/logger.h>

#include "common/base/log_level.hpp"

#if FMT_VERSION / 10000 == 9
#define SLUICE_FORMATS_ONCE
extern template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&, fmt::string_view,
                                                   fmt::format_args, fmt::detail::locale_ref);
#endif

namespace sluice {

constexpr spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace sluice
