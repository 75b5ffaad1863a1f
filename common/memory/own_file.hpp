// Files of this user's in a directory into which others may write, too: whatever they have put
// there under the same name, it is neither opened nor followed, and does not keep us from it.
#pragma once

#include <string>

#include <sys/stat.h>
#include <sys/types.h>

#include "common/memory/descriptor.hpp"

namespace sluice::memory {

/// "." of a name alone.
std::string directory_of(const std::string& path);

/// Root does as it likes.
bool is_another_users(const struct stat& found);
/// Whether the directory that has `path` is this user's: then what others have put there can be put
/// aside, with the sticky bit too.
bool owns_directory_of(const std::string& path);
/// A name that nobody can guess beside `path`, no longer than that one: it is as fit for a socket.
std::string name_beside(const std::string& path);

/// The file of that name with mode 0600, which is created if it is missing: nobody else can open
/// it. What another user has put in its place is put aside, if the directory is ours. Throws Error
/// kUnavailable.
Descriptor open_own_file(const std::string& path);

/// A new file with this text in place of whatever has the name, which everybody who can reach it
/// may read, and which is locked (flock) while the descriptor is open. By a rename, so that nobody
/// reads half of it, or holds a lock. Throws Error kUnavailable.
Descriptor replace_own_file(const std::string& path, const std::string& text);

/// The plain file, open for reading; none if it is missing or something else. Never waits.
Descriptor open_plain_file(const std::string& path);

}  // namespace sluice::memory
