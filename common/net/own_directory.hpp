// Directories whose contents this process trusts.
#pragma once

#include <string>

namespace sluice::net {

/// Creates the directory with mode 0700 if it is missing. Throws Error kUnavailable, which calls it
/// `what` ("vhost directory"), if that fails, if it is not a directory, or if other users could
/// have put something into it: that is so if it belongs neither to this user nor to root, or if
/// everybody may write to it. Returns whether it was missing.
bool make_own_directory(const std::string& what, const std::string& path);

}  // namespace sluice::net
