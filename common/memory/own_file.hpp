// Files of this user in a directory to which others may write, too. What others have put there with
// the same name is neither opened nor followed, and does not prevent us from using the name.
#pragma once

#include <string>

#include <sys/stat.h>
#include <sys/types.h>

#include "common/memory/descriptor.hpp"

namespace sluice::memory {

/// "." for a name without a directory.
std::string directory_of(const std::string& path);

/// Never true for files of root, which can do everything anyway.
bool is_another_users(const struct stat& found);
/// Whether this user owns the directory that contains `path`: then files that others have put there
/// can be renamed, even with the sticky bit.
bool owns_directory_of(const std::string& path);
/// A name beside `path` that nobody can guess. It is not longer, so it also fits a socket.
std::string name_beside(const std::string& path);

/// Opens the file with that name and mode 0600, and creates it if it is missing: nobody else can
/// open it. If another user has put something in its place, that is renamed, if the directory is
/// ours. Throws Error kUnavailable.
Descriptor open_own_file(const std::string& path);

/// Makes a new file with this text in place of what has the name. Everybody who can reach it may
/// read it. It is locked (flock) while the descriptor is open. It gets its name by a rename, so
/// that nobody reads half of it, or holds its lock. Throws Error kUnavailable.
Descriptor replace_own_file(const std::string& path, const std::string& text);

/// Opens a regular file for reading; empty if it is missing or of another kind. Never waits.
Descriptor open_plain_file(const std::string& path);

}  // namespace sluice::memory
