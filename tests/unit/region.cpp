// Shared memory between processes: what its owner cannot do to who maps it, and what is refused.
#include "worker/memory/region.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"

namespace region_tests {

using namespace sluice;
using namespace sluice::memory;
using Catch::Contains;

namespace {

constexpr std::size_t kMost = 1 << 20;

std::string refusal_of(const Descriptor& descriptor) {
  try {
    map_for_reading(descriptor, kMost);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    return error.what();
  }
  return "accepted";
}

Descriptor memfd(unsigned flags, off_t bytes, int seals) {
  Descriptor file(memfd_create("test", flags));
  REQUIRE(file);
  REQUIRE(ftruncate(file.get(), bytes) == 0);
  if (seals != 0) REQUIRE(fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

}  // namespace

TEST_CASE("what its owner writes is seen by who maps a region, without a copy") {
  OwnRegion own("tensors", 10'000, OwnRegion::Writers::kTrusted);
  CHECK(own.id() != 0);
  const Mapping peer = map_for_reading(own.descriptor(), kMost);
  REQUIRE(peer.bytes().size() == 10'000);
  CHECK(peer.bytes()[9'999] == std::byte{0});
  own.bytes()[9'999] = std::byte{42};
  CHECK(peer.bytes()[9'999] == std::byte{42});
}

TEST_CASE("a region cannot shrink, not even by its owner") {
  for (const auto writers : {OwnRegion::Writers::kTrusted, OwnRegion::Writers::kThisOnly}) {
    OwnRegion own("tensors", 10'000, writers);
    CHECK(ftruncate(own.descriptor().get(), 0) != 0);
    CHECK(ftruncate(own.descriptor().get(), 20'000) != 0);
    CHECK(fcntl(own.descriptor().get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  }
}

TEST_CASE("what one alone tells can be written by nobody else") {
  OwnRegion own("told", 4'096, OwnRegion::Writers::kThisOnly);
  own.bytes()[0] = std::byte{1};
  const Descriptor again(
      open(("/proc/self/fd/" + std::to_string(own.descriptor().get())).c_str(), O_RDWR));
  REQUIRE(again);  // as any process of this user can
  CHECK(mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
  const char byte = 2;
  CHECK(pwrite(again.get(), &byte, 1, 0) < 0);
  CHECK(fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096) < 0);
  const Mapping peer = map_for_reading(again, kMost);
  CHECK(peer.bytes()[0] == std::byte{1});
}

TEST_CASE("a region outlives its descriptor and its owner") {
  auto own = std::make_unique<OwnRegion>("told", 4'096, OwnRegion::Writers::kThisOnly);
  own->bytes()[5] = std::byte{9};
  const Mapping peer = map_for_reading(own->descriptor(), kMost);
  own.reset();
  CHECK(peer.bytes()[5] == std::byte{9});
}

TEST_CASE("a peer's file that it could take away, or that is no memory, is refused") {
  CHECK_THAT(refusal_of(memfd(MFD_ALLOW_SEALING, 4'096, 0)), Contains("not sealed against shrink"));
  CHECK_THAT(refusal_of(memfd(MFD_ALLOW_SEALING, 4'096, F_SEAL_GROW)), Contains("not sealed"));
  CHECK_THAT(refusal_of(memfd(0, 4'096, 0)), Contains("not sealed"));
  CHECK_THAT(refusal_of(Descriptor(open("/dev/zero", O_RDONLY))), Contains("cannot be sealed"));
  CHECK_THAT(refusal_of(Descriptor(open("/proc/self/exe", O_RDONLY))),
             Contains("cannot be sealed"));
  CHECK_THAT(refusal_of(Descriptor()), Contains("cannot be sealed"));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Descriptor writes(ends[1]);
  CHECK_THAT(refusal_of(Descriptor(ends[0])), Contains("cannot be sealed"));
}

TEST_CASE("a region of no bytes, or of more than are allowed, is refused and says how many") {
  CHECK_THAT(refusal_of(memfd(MFD_ALLOW_SEALING, 0, F_SEAL_SHRINK)),
             Contains("0 bytes; 1..1048576"));
  CHECK_THAT(refusal_of(memfd(MFD_ALLOW_SEALING, 1 << 21, F_SEAL_SHRINK)),
             Contains("2097152 bytes; 1..1048576"));
  CHECK(refusal_of(memfd(MFD_ALLOW_SEALING, 1 << 20, F_SEAL_SHRINK)) == "accepted");
  CHECK_THROWS_WITH(OwnRegion("none", 0, OwnRegion::Writers::kTrusted), Contains("0 bytes"));
}

TEST_CASE("a region on hugetlbfs is refused: its owner can punch pages out") {
  const Descriptor huge(memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!huge || ftruncate(huge.get(), 2 << 20) != 0) {
    std::printf("skipped: hugetlbfs: %s\n", std::strerror(errno));
    return;
  }
  REQUIRE(fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  try {
    map_for_reading(huge, 4 << 20);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Contains("hugetlbfs"));
  }
}

}  // namespace region_tests
