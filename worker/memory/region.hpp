// Memory that the ranks of one host share, so that they can sum tensors where they lie. A region is
// a memfd; its descriptor travels over a Unix socket.
//
// A process trusts another one with nothing beyond that one's own bytes:
// - A region cannot shrink, so what was mapped stays there. The process that maps it checks its
//   seal (F_SEAL_SHRINK). A file that cannot be sealed is refused: a read of a file of FUSE may
//   block for ever, and a page of a file on hugetlbfs that its owner punches out may be lost.
// - A process that did not make a region maps it for reading; or, as ranks store sums into each
//   other's tensors, for writing. A region in which one rank alone publishes cannot be mapped for
//   writing by others (F_SEAL_FUTURE_WRITE), as a process of the same user could open the
//   descriptor again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "common/memory/descriptor.hpp"

namespace sluice::memory {

/// Regions of at least this size are aligned to it, so that the kernel can map them by huge pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// A part of the address space that its owner unmaps.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// A region that this process has made and may write.
class OwnRegion {
 public:
  enum class Writers {
    /// All who have the descriptor may write: for tensors, whose owner alone is harmed if it leaks.
    kTrusted,
    kThisOnly,  ///< nobody else can map it for writing: for what one rank publishes for all others
  };

  /// /proc shows `name`. With kThisOnly it takes the pages at once, so that there is room for what
  /// is published. Throws Error kUnavailable, naming the size and the system's reason;
  /// kInvalidArgument for 0 bytes.
  OwnRegion(const std::string& name, std::size_t bytes, Writers writers);

  std::uint64_t id() const { return id_; }  ///< random, never 0
  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  std::uint64_t id_;
  Descriptor descriptor_;
  Mapping mapping_;
};

/// The size of the region behind a peer's descriptor. Throws Error kUnavailable, saying why, if it
/// cannot be trusted as described above.
std::size_t bytes_of_region(const Descriptor& descriptor);

/// Maps a region that another process has made. These throw as bytes_of_region does, and if the
/// region is empty or larger than `most_bytes`. An access to a page that fails ends this process.
Mapping map_for_reading(const Descriptor& descriptor, std::size_t most_bytes);
Mapping map_for_writing(const Descriptor& descriptor, std::size_t most_bytes);

}  // namespace sluice::memory
