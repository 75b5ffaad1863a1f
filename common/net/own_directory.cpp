#include "common/net/own_directory.hpp"

#include <cerrno>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

#include <sluice/error.hpp>

namespace sluice::net {

bool make_own_directory(const std::string& what, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUnavailable, what + " '" + path + "' " + why);
  };
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) refuse(std::string("cannot be created: ") + std::strerror(errno));
  struct stat found {};
  if (stat(path.c_str(), &found) != 0)
    refuse(std::string("cannot be read: ") + std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) refuse("is no directory");
  if (found.st_uid != geteuid() && found.st_uid != 0)
    refuse("belongs to user " + std::to_string(found.st_uid) +
           ": one of this user's or root's is "
           "expected");
  if ((found.st_mode & S_IWOTH) != 0)
    refuse("can be written by everybody: take that away (chmod o-w), or name another");
  return made;
}

}  // namespace sluice::net
