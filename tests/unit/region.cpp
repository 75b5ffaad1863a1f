// Shared memory between processes: what its owner cannot do to who maps it, and what is refused.
#include "common/memory/region.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"
#include "tests/unit/failing_memory.hpp"

using namespace sluice;
using namespace sluice::memory;
using Catch::Contains;

namespace {

constexpr std::size_t kMost = 1 << 20;

Descriptor copy_of(const Descriptor& descriptor) {
  return Descriptor(dup(descriptor.get()));
}

std::string refusal_of(Descriptor descriptor) {
  try {
    const PeerRegion region(7, std::move(descriptor), kMost);
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
  const PeerRegion peer(own.id(), copy_of(own.descriptor()), kMost);
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

TEST_CASE("results can be written by nobody but the process that made them") {
  OwnRegion own("results", 4'096, OwnRegion::Writers::kThisOnly);
  own.bytes()[0] = std::byte{1};
  const Descriptor again(
      open(("/proc/self/fd/" + std::to_string(own.descriptor().get())).c_str(), O_RDWR));
  REQUIRE(again);  // as any process of this user can
  CHECK(mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
  const char byte = 2;
  CHECK(pwrite(again.get(), &byte, 1, 0) < 0);
  CHECK(fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096) < 0);
  const PeerRegion peer(own.id(), copy_of(again), kMost);
  CHECK(peer.bytes()[0] == std::byte{1});
}

TEST_CASE("a region outlives its descriptor and its owner") {
  auto own = std::make_unique<OwnRegion>("results", 4'096, OwnRegion::Writers::kThisOnly);
  own->bytes()[5] = std::byte{9};
  const PeerRegion peer(own->id(), copy_of(own->descriptor()), kMost);
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
    const PeerRegion region(7, copy_of(huge), 4 << 20);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Contains("hugetlbfs"));
  }
}

TEST_CASE("who reads a region that fails finds zeros, and learns whose it was") {
  const parts::BusErrorHandler handler;
  OwnRegion first("first", 10'000, OwnRegion::Writers::kTrusted);
  OwnRegion second("second", 10'000, OwnRegion::Writers::kTrusted);
  first.bytes()[9'000] = second.bytes()[9'000] = std::byte{42};
  const PeerRegion failing(first.id(), copy_of(first.descriptor()), kMost);
  const PeerRegion other(second.id(), copy_of(second.descriptor()), kMost);
  parts::make_fail(failing.bytes());
  CHECK(!failing.lost());
  CHECK(failing.bytes()[9'000] == std::byte{0});
  CHECK(failing.lost());
  CHECK(failing.bytes()[0] == std::byte{0});
  CHECK(!other.lost());
  CHECK(other.bytes()[9'000] == std::byte{42});
}

TEST_CASE("what comes to the place of a region that failed has not failed") {
  const parts::BusErrorHandler handler;
  OwnRegion own("tensors", 4'096, OwnRegion::Writers::kTrusted);
  for (int i = 0; i < 100; ++i) {
    const PeerRegion region(own.id(), copy_of(own.descriptor()), kMost);
    CHECK(!region.lost());
    parts::make_fail(region.bytes());
    CHECK(region.bytes()[0] == std::byte{0});
    CHECK(region.lost());
  }
}

TEST_CASE("no other memory is replaced") {
  OwnRegion own("tensors", 4'096, OwnRegion::Writers::kTrusted);
  CHECK(!replace_lost_mapping(own.bytes().data()));
  CHECK(!replace_lost_mapping(nullptr));
  const std::byte* gone = nullptr;
  {
    const PeerRegion region(own.id(), copy_of(own.descriptor()), kMost);
    gone = region.bytes().data();
    CHECK(!replace_lost_mapping(gone - 1));
    CHECK(!replace_lost_mapping(gone + 4'096));
  }
  CHECK(!replace_lost_mapping(gone));
}

TEST_CASE("more regions than may be mapped are refused, and then there is room again") {
  std::array<std::byte, 1> byte{};
  std::vector<std::unique_ptr<LossWatch>> watches;
  CHECK_THROWS_WITH(
      [&] {
        for (;;) watches.push_back(std::make_unique<LossWatch>(byte));
      }(),
      Contains("regions are mapped already"));
  CHECK(watches.size() > 1'000);
  watches.pop_back();
  const LossWatch fits(byte);
}
