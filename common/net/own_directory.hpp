// Directories whose content this process trusts.
#pragma once

#include <string>

namespace sluice::net {

/// Creates the directory with mode 0700 if it is missing. Throws Error kUnavailable, which calls it
/// `what` ("vhost directory"), if that fails, if it is no directory, or if others could have put
/// something into it: it belongs neither to this user nor to root, or everybody may write to it.
/// True if it was missing.
bool make_own_directory(const std::string& what, const std::string& path);

}  // namespace sluice::net
