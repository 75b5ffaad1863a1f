// The link in memory.
#include <memory>

#include "common/net/datagram_io.hpp"
#include "common/net/memory_link.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/one_eal.hpp"

namespace pktgen_memory_tests {

using namespace sluice;
using namespace sluice::net;

namespace {

constexpr std::uint16_t kFarPort = 4747;
constexpr std::uint16_t kOurPort = 20'000;

struct Bed {
  Bed() {
    far.listen(kFarPort);
    far.add_port(link.port());
  }
  Buffer payload(char first, std::size_t size) {
    Buffer buffer = link.allocate(size);
    REQUIRE(buffer);
    buffer.writable()[0] = static_cast<std::byte>(first);
    return buffer;
  }

  BufferPool payloads{"payloads", 1023, 9000};
  BufferPool headers{"headers", 255, 0};
  MemoryLink link{{.frames = 128, .mtu = 9000}, payloads};
  DatagramIo far{payloads, headers};
};

}  // namespace

TEST_CASE("Datagrams go up and down a memory link, and every buffer comes back") {
  start_eal_once();
  auto bed = std::make_unique<Bed>();
  for (std::uint16_t i = 0; i < 40; ++i)
    bed->link.send(bed->link.far_end(kFarPort, static_cast<std::uint16_t>(kOurPort + i)),
                   bed->payload(static_cast<char>(i), 100u + i));
  bed->link.flush();
  std::size_t up = 0;
  const auto answer = [&](const Endpoint& from, Buffer buffer) {
    CHECK(from.udp_port == kOurPort + up);
    CHECK(buffer.bytes().size() == 100u + up);
    CHECK(buffer.bytes()[0] == static_cast<std::byte>(up));
    const Buffer kept = buffer.share();  // so that it goes behind a header of its own
    if (up % 2 == 0)
      bed->far.send(from, buffer.share());
    else
      bed->far.send(from, std::move(buffer));
    ++up;
  };
  while (bed->far.receive(answer) != 0) bed->far.flush();
  CHECK(up == 40);
  CHECK(bed->far.counters().tx_chained == 40);

  std::size_t down = 0;
  while (bed->link.receive([&](const Endpoint& from, Buffer buffer) {
    CHECK(from.local_udp_port == kOurPort + down);
    CHECK(from.udp_port == kFarPort);
    CHECK(buffer.bytes().size() == 100u + down);
    CHECK(buffer.bytes()[0] == static_cast<std::byte>(down));
    ++down;
  }) != 0) {
  }
  CHECK(down == 40);
  CHECK(bed->link.counters().rx_datagrams == 40);
  CHECK(bed->link.counters().rx_bytes == bed->link.counters().tx_bytes);
  CHECK(bed->payloads.available() == bed->payloads.size());
  CHECK(bed->headers.available() == bed->headers.size());
}

TEST_CASE("A full memory link drops and counts; what is under way at its end is freed") {
  start_eal_once();
  auto bed = std::make_unique<Bed>();
  for (int i = 0; i < 200; ++i)
    bed->link.send(bed->link.far_end(kFarPort, kOurPort), bed->payload('x', 64));
  bed->link.flush();
  CHECK(bed->link.counters().tx_frames == 127);
  CHECK(bed->link.counters().tx_backlog_full == 73);
  CHECK(bed->payloads.available() == bed->payloads.size() - 127);
  bed->link.send(bed->link.far_end(kFarPort, kOurPort), bed->payload('x', 64));  // not flushed
  bed.reset();  // a pool that lacks buffers complains, and fails this test's successor by its name
}

TEST_CASE("A link can be made again under the same name") {
  start_eal_once();
  auto bed = std::make_unique<Bed>();
  CHECK(bed->payloads.available() == bed->payloads.size());
}

}  // namespace pktgen_memory_tests
