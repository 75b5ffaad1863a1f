#include "worker/memory/region.hpp"

#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/random_id.hpp"

namespace sluice::memory {
namespace {

constexpr const char* kPeers = "a peer's shared memory";

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::kUnavailable, what + ": " + why);
}

[[noreturn]] void refuse_with_errno(const std::string& what) {
  refuse(what, std::strerror(errno));
}

/// Rounds up to whole pages.
std::size_t pages_of(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

Mapping map(const Descriptor& descriptor, std::size_t bytes, int protection,
            const std::string& what) {
  const auto refused = [&what] { refuse_with_errno(what + " cannot be mapped"); };
  if (bytes < kHugePage) {
    void* const address = mmap(nullptr, bytes, protection, MAP_SHARED, descriptor.get(), 0);
    if (address == MAP_FAILED) refused();
    return Mapping({static_cast<std::byte*>(address), bytes});
  }
  // Takes a larger range of addresses, in which an aligned one lies, and unmaps the rest.
  const std::size_t room = bytes + kHugePage;
  void* const reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) refused();
  auto* const first = static_cast<std::byte*>(reserved);
  const std::size_t before = -std::bit_cast<std::uintptr_t>(first) % kHugePage;
  if (mmap(first + before, bytes, protection, MAP_SHARED | MAP_FIXED, descriptor.get(), 0) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(reserved, room);
    errno = error;
    refused();
  }
  const std::size_t mapped_end = before + pages_of(bytes);
  if (before > 0) munmap(first, before);
  if (mapped_end < room) munmap(first + mapped_end, room - mapped_end);
  return Mapping({first + before, bytes});
}

/// A file larger than the limit would end the process by a signal.
void require_file_size(std::size_t bytes, const std::string& what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
    refuse(what,
           "files may have at most " + std::to_string(limit.rlim_cur) + " bytes here (ulimit -f)");
}

}  // namespace

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

OwnRegion::OwnRegion(const std::string& name, std::size_t bytes, Writers writers)
    : id_(random_id()) {
  const std::string what = "shared memory of " + std::to_string(bytes) + " bytes";
  if (bytes == 0) throw Error(ErrorCode::kInvalidArgument, what + ": at least 1 expected");
  require_file_size(bytes, what);
  descriptor_ = Descriptor(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor_) refuse_with_errno(what);
  if (ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) != 0) refuse_with_errno(what);
  if (writers == Writers::kThisOnly &&
      fallocate(descriptor_.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    refuse_with_errno(what);
  mapping_ = map(descriptor_, bytes, PROT_READ | PROT_WRITE, what);
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (writers == Writers::kThisOnly) seals |= F_SEAL_FUTURE_WRITE;  // except for the mapping above
  if (fcntl(descriptor_.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) refuse_with_errno(what);
}

// Checks the seals first: another request to a file of FUSE may block for ever.
std::size_t bytes_of_region(const Descriptor& descriptor) {
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0) refuse(kPeers, "its file cannot be sealed; a memfd is expected");
  if ((seals & F_SEAL_SHRINK) == 0) refuse(kPeers, "it is not sealed against shrinking");
  struct statfs system {};
  if (fstatfs(descriptor.get(), &system) != 0) refuse_with_errno(kPeers);
  if (system.f_type == HUGETLBFS_MAGIC) refuse(kPeers, "it is of hugetlbfs, not a plain memfd");
  struct stat file {};
  if (fstat(descriptor.get(), &file) != 0) refuse_with_errno(kPeers);
  return static_cast<std::size_t>(file.st_size);
}

namespace {

Mapping map_peers(const Descriptor& descriptor, std::size_t most_bytes, int protection) {
  const std::size_t bytes = bytes_of_region(descriptor);
  if (bytes == 0 || bytes > most_bytes)
    refuse(kPeers, "it has " + std::to_string(bytes) + " bytes; 1.." + std::to_string(most_bytes) +
                       " expected");
  return map(descriptor, bytes, protection, kPeers);
}

}  // namespace

Mapping map_for_reading(const Descriptor& descriptor, std::size_t most_bytes) {
  return map_peers(descriptor, most_bytes, PROT_READ);
}

Mapping map_for_writing(const Descriptor& descriptor, std::size_t most_bytes) {
  return map_peers(descriptor, most_bytes, PROT_READ | PROT_WRITE);
}

}  // namespace sluice::memory
