#include "common/memory/own_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/random_id.hpp"

namespace sluice::memory {
namespace {

constexpr int kSafely = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kUnavailable, "'" + path + "' cannot be written: " + why);
}

bool is_plain_own(int fd) {
  struct stat found {};
  return fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
         found.st_nlink == 1;
}

/// Makes the name free; returns whether it is. A directory with contents is kept, under another
/// name.
bool put_aside_anothers(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return errno == ENOENT;
  if (!is_another_users(found) || !owns_directory_of(path)) return false;
  const std::string aside = name_beside(path);
  if (rename(path.c_str(), aside.c_str()) != 0) return false;
  if (unlink(aside.c_str()) != 0) rmdir(aside.c_str());
  return true;
}

/// Returns whose file it is; or the error of opening it, if there is none.
std::string whose(const std::string& path, int error) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return std::strerror(error);
  return (S_ISREG(found.st_mode) ? "it is a file of user "
                                 : "it is no plain file, and belongs to user ") +
         std::to_string(found.st_uid) + "; remove it";
}

}  // namespace

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool is_another_users(const struct stat& found) {
  return found.st_uid != geteuid() && found.st_uid != 0;
}

bool owns_directory_of(const std::string& path) {
  struct stat found {};
  return stat(directory_of(path).c_str(), &found) == 0 && found.st_uid == geteuid();
}

std::string name_beside(const std::string& path) {
  const std::size_t name = path.rfind('/') + 1;  // 0 if there is none
  return path.substr(0, name) +
         std::to_string(random_id()).substr(0, std::min<std::size_t>(path.size() - name, 7));
}

Descriptor open_own_file(const std::string& path) {
  constexpr int kTries = 2;  // in the second one the name is free
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | kSafely, 0600));
    if (is_plain_own(file.get()) && fchmod(file.get(), 0600) == 0) return file;
    error = errno;
    if (!file && errno != EACCES && errno != ELOOP && errno != EISDIR && errno != ENXIO)
      refuse_file(path, std::strerror(errno));
    if (!put_aside_anothers(path)) break;
  }
  refuse_file(path, whose(path, error));
}

Descriptor replace_own_file(const std::string& path, const std::string& text) {
  const std::string fresh = name_beside(path);
  Descriptor file(open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | kSafely, 0600));
  if (!file) refuse_file(path, std::strerror(errno));
  const auto replaces = [&] { return rename(fresh.c_str(), path.c_str()) == 0; };
  const bool made = flock(file.get(), LOCK_EX | LOCK_NB) == 0 &&
                    write(file.get(), text.data(), text.size()) == ssize_t(text.size()) &&
                    fchmod(file.get(), 0644) == 0 &&
                    (replaces() || (put_aside_anothers(path) && replaces()));
  if (made) return file;
  const std::string why = errno == EISDIR ? whose(path, errno) : std::strerror(errno);
  unlink(fresh.c_str());
  refuse_file(path, why);
}

Descriptor open_plain_file(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | kSafely));
  struct stat found {};
  if (!file || fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  return file;
}

}  // namespace sluice::memory
