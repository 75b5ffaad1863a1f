// Memory that the ranks of one host share: they sum tensors where they lie. A region is a memfd;
// its descriptor travels over a Unix socket.
//
// Nobody trusts his peer with more than its own bytes:
//  - A region cannot shrink, so that what was mapped stays there: F_SEAL_SHRINK, which the one who
//    maps it checks. A file that cannot be sealed is refused: reading one of FUSE may never end,
//    and a page of one on hugetlbfs that its owner punches out cannot be had again.
//  - Who did not make a region maps it for reading, or, as ranks store sums into each other's
//    tensors, for writing. Of what one alone tells nobody else can map more (F_SEAL_FUTURE_WRITE),
//    as a process of the same user could open the descriptor anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "common/memory/descriptor.hpp"

namespace sluice::memory {

/// Regions of at least one lie at a multiple of it, so that the kernel can map them by huge pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// A part of the address space that is unmapped with its owner.
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
    kTrusted,   ///< whoever gets the descriptor: tensors, whose owner harms himself alone if he
                ///< gives it away
    kThisOnly,  ///< nobody else can map it for writing: what one rank tells all others
  };

  /// `name` is what /proc shows. Takes the pages at once for kThisOnly: what is told has room.
  /// Throws Error kUnavailable, naming the size and the system's reason; kInvalidArgument for 0
  /// bytes.
  OwnRegion(const std::string& name, std::size_t bytes, Writers writers);

  std::uint64_t id() const { return id_; }  ///< random, never 0
  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  const Descriptor& descriptor() const { return descriptor_; }

 private:
  std::uint64_t id_;
  Descriptor descriptor_;
  Mapping mapping_;
};

/// Of the region that a peer's descriptor names. Throws Error kUnavailable, saying what is wrong
/// with it, if it cannot be trusted as said above.
std::size_t bytes_of_region(const Descriptor& descriptor);

/// Of a region that another process has made. They throw as bytes_of_region, and if the region is
/// empty or has more than `most_bytes`. An access to a page that fails ends this process.
Mapping map_for_reading(const Descriptor& descriptor, std::size_t most_bytes);
Mapping map_for_writing(const Descriptor& descriptor, std::size_t most_bytes);

}  // namespace sluice::memory
