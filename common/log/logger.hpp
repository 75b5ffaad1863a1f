// spdlog's logger, quick to compile: its headers have each file that logs compile all of fmt's
// formatting, which here logger.cpp alone does. Another fmt than 9 may declare it otherwise, and
// is taken as it comes.
#pragma once

#include <spdlog/logger.h>

#if FMT_VERSION / 10000 == 9
#define SLUICE_FORMATS_ONCE
extern template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&, fmt::string_view,
                                                   fmt::format_args, fmt::detail::locale_ref);
#endif
