// spdlog's logger, quick to compile: what formats its messages is in libfmt, but the headers would
// have each file that logs compile it anew. For parts that link spdlog.
#pragma once

#include <spdlog/logger.h>

#if defined(SPDLOG_FMT_EXTERNAL) && !defined(FMT_HEADER_ONLY) && FMT_VERSION / 10000 == 9
extern template void fmt::detail::vformat_to<char>(fmt::detail::buffer<char>&, fmt::string_view,
                                                   fmt::format_args, fmt::detail::locale_ref);
#endif
