// How regions pass between a daemon and its workers: both sides in one process, polled in turns.
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/config/claim.hpp"
#include "common/memory/exchange.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/failing_memory.hpp"

using namespace sluice;
using namespace sluice::memory;
using Catch::Contains;

namespace {

constexpr std::uint32_t kJob = 42;
constexpr std::size_t kMessageBytes = 128;

struct Exchange {
  Exchange() {
    char name[] = "/tmp/sluice-exchange-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory = name;
    start();
  }
  ~Exchange() { std::filesystem::remove_all(directory); }

  void start() {
    server.reset();
    server = std::make_unique<RegionServer>(
        path(),
        RegionServerOptions{.arena_bytes_max = 1 << 20,
                            .arenas_max = 20,
                            .results_bytes = 8'192,
                            .results_max = 20,
                            .workers_max = 4},
        RegionServerEvents{.refused = [this](const std::string& why) { refusals.push_back(why); },
                           .lost = [this](pid_t process) { lost.push_back(process); }});
  }
  std::string path() const { return directory + "/regions"; }

  /// So often that whatever is due has passed both ways.
  void settle(std::initializer_list<RegionClient*> clients) {
    for (int i = 0; i < 10; ++i) {
      for (RegionClient* const client : clients) client->poll();
      server->poll();
    }
    for (RegionClient* const client : clients) client->poll();
  }

  std::string directory;
  std::vector<std::string> refusals;
  std::vector<pid_t> lost;
  std::unique_ptr<RegionServer> server;
};

OwnRegion arena_of(std::size_t bytes) {
  return {"arena", bytes, OwnRegion::Writers::kTrusted};
}

/// A request as it stands on the socket.
std::array<std::byte, kMessageBytes> request(std::uint16_t kind, std::uint64_t id,
                                             std::uint32_t job = 0) {
  std::array<std::byte, kMessageBytes> bytes{};
  const std::uint32_t magic = 0x52'4c'53'04;
  std::memcpy(&bytes[0], &magic, sizeof magic);
  std::memcpy(&bytes[4], &kind, sizeof kind);
  std::memcpy(&bytes[8], &id, sizeof id);
  std::memcpy(&bytes[16], &job, sizeof job);
  return bytes;
}

bool is_readable(int descriptor) {
  pollfd waiting{descriptor, POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

bool is_closed(const UnixSocket& socket) {
  std::array<std::byte, kMessageBytes> bytes;
  for (;;) {
    const auto io = socket.receive(bytes).io;
    if (io != UnixSocket::Io::kDone) return io == UnixSocket::Io::kClosed;
  }
}

}  // namespace

TEST_CASE("a worker's arenas are found by their ids, and all ranks get the region of the job") {
  Exchange exchange;
  const OwnRegion first = arena_of(4'096), second = arena_of(10'000), other = arena_of(100);
  RegionClient zero(exchange.path()), one(exchange.path());
  zero.share(first);
  zero.share(second);
  one.share(other);
  zero.ask_for_results({kJob});
  one.ask_for_results({kJob});
  CHECK(!zero.is_shared());
  exchange.settle({&zero, &one});
  CHECK(zero.problem() == "");
  CHECK(zero.is_shared());
  CHECK(one.is_shared());
  second.bytes()[9'999] = std::byte{7};
  REQUIRE(exchange.server->arena(second.id()));
  CHECK(exchange.server->arena(second.id())->bytes()[9'999] == std::byte{7});
  CHECK(!exchange.server->arena(1));

  REQUIRE(zero.results({kJob}));
  REQUIRE(one.results({kJob}));
  CHECK(zero.results({kJob})->id() == one.results({kJob})->id());
  const auto taken = exchange.server->take_results({kJob}, zero.results({kJob})->id());
  REQUIRE(taken);
  taken->bytes()[8'191] = std::byte{3};
  CHECK(one.results({kJob})->bytes()[8'191] == std::byte{3});
  CHECK(exchange.refusals.empty());
}

TEST_CASE("every session has a region of its own") {
  Exchange exchange;
  RegionClient client(exchange.path());
  client.ask_for_results({kJob});
  exchange.settle({&client});
  const auto first = client.results({kJob});
  REQUIRE(first);
  CHECK(!exchange.server->take_results({kJob + 1}, first->id()));
  CHECK(!exchange.server->take_results({kJob}, first->id() + 1));
  CHECK(exchange.server->take_results({kJob}, first->id()));
  CHECK(!exchange.server->take_results({kJob}, first->id()));
  client.ask_for_results({kJob});
  CHECK(client.results({kJob})->id() == first->id());  // until the new answer is here
  exchange.settle({&client});
  REQUIRE(client.results({kJob}));
  CHECK(client.results({kJob})->id() != first->id());
}

TEST_CASE("an arena grows by further ones") {
  Exchange exchange;
  const OwnRegion first = arena_of(4'096), second = arena_of(4'096);
  RegionClient client(exchange.path());
  client.share(first);
  exchange.settle({&client});
  CHECK(client.is_shared());
  client.share(second);
  CHECK(!client.is_shared());
  exchange.settle({&client});
  CHECK(client.is_shared());
  CHECK(exchange.server->arena(second.id()));
}

TEST_CASE("a region is found beside another one only if one worker has shared both") {
  Exchange exchange;
  const OwnRegion slots = arena_of(4'096), tensors = arena_of(4'096), other = arena_of(4'096);
  RegionClient client(exchange.path()), second_client(exchange.path());
  client.share(slots);
  client.share(tensors);
  second_client.share(other);
  exchange.settle({&client, &second_client});
  const RegionServer& server = *exchange.server;
  CHECK(server.arena(tensors.id(), slots.id()));
  CHECK(server.arena(slots.id(), slots.id()));
  CHECK(server.arena(tensors.id(), 0));
  CHECK(!server.arena(tensors.id(), other.id()));
  CHECK(!server.arena(other.id(), slots.id()));
  CHECK(!server.arena(tensors.id(), 1));  // which nobody has shared
  client.forget(slots);
  exchange.settle({&client});
  CHECK(!server.arena(tensors.id(), slots.id()));
  CHECK(server.arena(tensors.id()));
}

TEST_CASE("who holds a region learns that some are gone") {
  Exchange exchange;
  const OwnRegion first = arena_of(4'096), second = arena_of(4'096);
  auto client = std::make_unique<RegionClient>(exchange.path());
  RegionClient idle(exchange.path());
  client->share(first);
  client->share(second);
  exchange.settle({client.get(), &idle});
  const auto changes = [&] { return exchange.server->changes(); };
  const std::uint64_t before = changes();
  client->ask_for_results({kJob});
  exchange.settle({client.get()});
  CHECK(changes() == before);
  client->forget(first);
  exchange.settle({client.get()});
  const std::uint64_t forgotten = changes();
  CHECK(forgotten > before);
  CHECK(exchange.server->arena(second.id()));
  client.reset();
  exchange.settle({&idle});
  CHECK(changes() > forgotten);
}

TEST_CASE("a worker's regions are counted together") {
  Exchange exchange;
  const OwnRegion first = arena_of(3 << 18), second = arena_of(1 << 19), third = arena_of(1 << 18);
  RegionClient client(exchange.path());
  client.share(first);
  client.share(second);
  client.share(third);
  exchange.settle({&client});
  CHECK_THAT(client.problem(),
             Contains("524288 bytes beside 786432 that are mapped") && Contains("1048576"));
  CHECK(!exchange.server->arena(second.id()));
  CHECK(exchange.server->arena(third.id()));
}

TEST_CASE("very many small regions of one worker are refused, and it goes on with the others") {
  Exchange exchange;  // each would take one of the mappings that a process may have
  std::vector<OwnRegion> regions;
  RegionClient greedy(exchange.path()), other(exchange.path());
  for (int i = 0; i < 21; ++i) regions.push_back(arena_of(1));
  for (const OwnRegion& region : regions) greedy.share(region);
  const OwnRegion slots = arena_of(4'096);
  other.share(slots);
  exchange.settle({&greedy, &other});
  CHECK(exchange.refusals.size() == 1);
  CHECK_THAT(greedy.problem(), Contains("20 regions already"));
  CHECK(exchange.server->arena(regions[19].id()));
  CHECK(!exchange.server->arena(regions[20].id()));
  CHECK(other.is_shared());
}

TEST_CASE("a process that joins again and again takes no more than it needs") {
  Exchange exchange;
  RegionClient client(exchange.path());
  for (std::uint32_t job = 0; job < 100; ++job) {  // one at a time: half of what a worker may share
    const OwnRegion slots = arena_of(1 << 19);
    client.share(slots);
    client.ask_for_results({job});
    exchange.settle({&client});
    REQUIRE(client.problem() == "");
    REQUIRE(client.is_shared());
    const std::weak_ptr<const PeerRegion> results = client.results({job});
    REQUIRE(!results.expired());
    REQUIRE(exchange.server->take_results({job}, results.lock()->id()));
    const std::weak_ptr<const PeerRegion> mapped = exchange.server->arena(slots.id());
    client.forget(slots);
    client.forget_results(job);
    exchange.settle({&client});
    CHECK(results.expired());
    CHECK(mapped.expired());
  }
  CHECK(exchange.refusals.empty());
}

TEST_CASE("a worker asks once until it is answered") {
  Exchange exchange;
  exchange.server.reset();
  const UnixSocket daemon = UnixSocket::listen(exchange.path());
  RegionClient client(exchange.path());
  for (int i = 0; i < 100; ++i) {
    client.ask_for_results({kJob});
    client.poll();
  }
  const auto worker = daemon.accept();
  REQUIRE(worker);
  std::array<std::byte, kMessageBytes> bytes;
  CHECK(worker->receive(bytes).io == UnixSocket::Io::kDone);
  CHECK(worker->receive(bytes).io == UnixSocket::Io::kNothing);
}

TEST_CASE("an answer to a question of an earlier life of the job does not count") {
  Exchange exchange;
  RegionClient client(exchange.path());
  client.ask_for_results({kJob});
  client.poll();
  exchange.server->poll();  // it answers, and the job ends before that is read
  client.forget_results(kJob);
  client.ask_for_results({kJob});
  client.poll();
  CHECK(!client.results({kJob}));
  exchange.settle({&client});
  REQUIRE(client.results({kJob}));
  CHECK(exchange.server->take_results({kJob}, client.results({kJob})->id()));
}

TEST_CASE("a worker may have been in any number of jobs whose regions no session took") {
  Exchange exchange;
  RegionClient client(exchange.path()), other(exchange.path());
  other.ask_for_results({0});
  exchange.settle({&other});
  for (std::uint32_t job = 0; job < 100; ++job) {
    client.ask_for_results({job});
    exchange.settle({&client});
    REQUIRE(client.results({job}));
    client.forget_results(job);
  }
  exchange.settle({&client});
  CHECK(exchange.refusals.empty());
  CHECK(exchange.server->results_bytes({0}, other.results({0})->id()) !=
        0);  // who still waits keeps it
}

TEST_CASE("who was refused a region may ask again, and then nothing is wrong any more") {
  Exchange exchange;
  RegionClient client(exchange.path());
  for (std::uint32_t job = 0; job <= 16; ++job) client.ask_for_results({job});
  exchange.settle({&client});
  CHECK_THAT(client.problem(), Contains("too many jobs"));
  CHECK(!client.results({16}));
  client.forget_results(3);
  client.ask_for_results({16});
  exchange.settle({&client});
  CHECK(client.problem() == "");
  CHECK(client.results({16}));
}

TEST_CASE("a region has what was asked for, and all ranks get the longest") {
  Exchange exchange;
  RegionClient zero(exchange.path()), one(exchange.path()), two(exchange.path());
  zero.ask_for_results({kJob}, 4'096);
  exchange.settle({&zero});
  REQUIRE(zero.results({kJob}));
  CHECK(zero.results({kJob})->bytes().size() == 4'096);
  one.ask_for_results({kJob}, ~std::uint64_t{0});
  two.ask_for_results({kJob}, 100);
  exchange.settle({&one, &two});
  REQUIRE(one.results({kJob}));
  CHECK(one.results({kJob})->bytes().size() == 8'192);
  REQUIRE(two.results({kJob}));
  CHECK(two.results({kJob})->id() == one.results({kJob})->id());
  CHECK(!exchange.server->take_results({kJob}, zero.results({kJob})->id()));
  zero.ask_for_results({kJob}, 4'096);
  exchange.settle({&zero});
  CHECK(zero.results({kJob})->id() == one.results({kJob})->id());
  CHECK(exchange.server->take_results({kJob}, one.results({kJob})->id()));
}

TEST_CASE("a daemon that sleeps is woken by what workers send, and by nothing else") {
  Exchange exchange;
  const auto wakes = [&] { return is_readable(exchange.server->descriptor()); };
  const OwnRegion arena = arena_of(4'096);
  auto client = std::make_unique<RegionClient>(exchange.path());
  CHECK(!wakes());
  client->poll();
  CHECK(wakes());
  exchange.settle({client.get()});
  CHECK(!wakes());
  client->share(arena);
  client->poll();
  CHECK(wakes());
  exchange.settle({client.get()});
  CHECK(client->is_shared());
  CHECK(!wakes());
  client.reset();
  CHECK(wakes());
  exchange.server->poll();
  CHECK(!wakes());
}

TEST_CASE("a region that a session has taken is not given out again") {
  Exchange exchange;
  RegionClient zero(exchange.path()), one(exchange.path());
  zero.ask_for_results({kJob});
  exchange.settle({&zero});
  const auto id = zero.results({kJob})->id();
  REQUIRE(exchange.server->take_results({kJob}, id));
  one.ask_for_results({kJob});
  exchange.settle({&zero, &one});
  REQUIRE(one.results({kJob}));
  CHECK(one.results({kJob})->id() != id);
}

TEST_CASE("what a worker that is gone has shared is read by its session only, and then unmapped") {
  Exchange exchange;
  const OwnRegion arena = arena_of(4'096);
  auto client = std::make_unique<RegionClient>(exchange.path());
  client->share(arena);
  client->ask_for_results({kJob});
  exchange.settle({client.get()});
  auto held = exchange.server->arena(arena.id());
  REQUIRE(held);
  client.reset();
  exchange.server->poll();
  CHECK(!exchange.server->arena(arena.id()));
  arena.bytes()[0] = std::byte{5};
  CHECK(held->bytes()[0] == std::byte{5});
  exchange.server->poll();
  CHECK(held.use_count() == 2);  // the server unmaps it, not the session
  const std::weak_ptr<const PeerRegion> watched = held;
  held.reset();
  CHECK(!watched.expired());
  exchange.server->poll();
  CHECK(watched.expired());
}

TEST_CASE("a worker whose memory fails is disconnected, and nobody else") {
  const parts::BusErrorHandler handler;
  Exchange exchange;
  const OwnRegion failing = arena_of(4'096), beside = arena_of(4'096), other = arena_of(4'096);
  RegionClient client(exchange.path()), second_client(exchange.path());
  client.share(failing);
  client.share(beside);
  second_client.share(other);
  exchange.settle({&client, &second_client});
  other.bytes()[0] = std::byte{8};
  const auto held = exchange.server->arena(failing.id());
  const auto beside_it = exchange.server->arena(beside.id());
  parts::make_fail(held->bytes());
  CHECK(held->bytes()[0] == std::byte{0});
  CHECK(!exchange.server->arena(failing.id()));  // at once
  const std::uint64_t before = exchange.server->changes();
  exchange.server->poll();
  CHECK(exchange.lost == std::vector<pid_t>{getpid()});
  CHECK(exchange.server->counters().workers_lost == 1);
  CHECK(exchange.server->changes() > before);
  CHECK(!exchange.server->arena(beside.id()));
  CHECK(exchange.server->arena(other.id())->bytes()[0] == std::byte{8});
  CHECK(second_client.is_shared());

  exchange.settle({&client, &second_client});  // it comes again, with memory in order
  CHECK(client.is_shared());
  CHECK(exchange.lost.size() == 1);
  failing.bytes()[0] = std::byte{9};
  CHECK(exchange.server->arena(failing.id())->bytes()[0] == std::byte{9});
  CHECK(held->lost());
}

TEST_CASE("a daemon that comes back is given everything again") {
  Exchange exchange;
  const OwnRegion arena = arena_of(4'096);
  RegionClient client(exchange.path());
  client.share(arena);
  client.ask_for_results({kJob});
  exchange.settle({&client});
  const auto before = client.results({kJob});
  REQUIRE(before);
  exchange.server.reset();
  client.poll();
  CHECK(!client.is_shared());
  CHECK(!client.results({kJob}));
  client.poll();
  CHECK_THAT(client.problem(), Contains(exchange.path()));
  exchange.start();
  exchange.settle({&client});
  CHECK(client.problem() == "");
  CHECK(client.is_shared());
  REQUIRE(client.results({kJob}));
  CHECK(client.results({kJob})->id() != before->id());
  CHECK(exchange.server->arena(arena.id()));
}

TEST_CASE("what another user has put in the place of a socket is removed from our directory") {
  if (geteuid() != 0) {
    WARN("skipped: only root can give a file away");
    return;
  }
  constexpr uid_t kOther = 65534;
  Exchange exchange;
  exchange.server.reset();
  const std::string path = exchange.path();
  const std::vector<std::function<void()>> squats{
      [&] { std::ofstream(path) << "a file"; },
      [&] { std::filesystem::create_symlink("/dev/null", path); },
      [&] { std::filesystem::create_directory(path); },
      [&] {
        std::filesystem::create_directory(path);
        std::ofstream(path + "/full") << "";
      },
  };
  for (const auto& squat : squats) {
    squat();
    REQUIRE(lchown(path.c_str(), kOther, kOther) == 0);
    const UnixSocket server = UnixSocket::listen(path, 0660);
    CHECK(UnixSocket::connect(path));
    CHECK(server.accept());
    std::filesystem::remove(path);
  }
  const UnixSocket theirs = UnixSocket::listen(path);
  REQUIRE(lchown(path.c_str(), kOther, kOther) == 0);
  const UnixSocket ours = UnixSocket::listen(path);
  CHECK(UnixSocket::connect(path));
  CHECK(ours.accept());
  CHECK(!theirs.accept());

  // A path of the most bytes that there may be.
  constexpr std::size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  const std::string deep =
      exchange.directory + "/" + std::string(kMost - exchange.directory.size() - 3, 'd');
  std::filesystem::create_directory(deep);
  std::ofstream(deep + "/s") << "a file";
  REQUIRE(lchown((deep + "/s").c_str(), kOther, kOther) == 0);
  const UnixSocket at_the_end = UnixSocket::listen(deep + "/s");
  CHECK(UnixSocket::connect(deep + "/s"));

  REQUIRE(lchown(path.c_str(), kOther, kOther) == 0);
  REQUIRE(chown(exchange.directory.c_str(), kOther, kOther) == 0);
  CHECK_THROWS_WITH(UnixSocket::listen(path), Contains("another process serves it"));
}

TEST_CASE("a socket that is served is left alone, one that nobody serves is replaced") {
  Exchange exchange;
  CHECK_THROWS_WITH(RegionServer(exchange.path(), {}, {}), Contains("another process serves it"));
  exchange.server.reset();
  std::ofstream(exchange.path()) << "somebody's";
  CHECK_THROWS_WITH(RegionServer(exchange.path(), {}, {}),
                    Contains("there is something else of this name"));
  std::filesystem::remove(exchange.path());
  UnixSocket::listen(exchange.path());  // is left behind
  exchange.start();
  RegionClient client(exchange.path());
  exchange.settle({&client});
  CHECK(client.problem() == "");
}

TEST_CASE("of several that find a socket unserved at once, one serves it") {
  constexpr int kAtOnce = 4;
  Exchange exchange;
  exchange.server.reset();
  const auto claim = config::Claim::on_directory(exchange.directory);  // as a daemon has it
  for (int round = 0; round < 200; ++round) {
    UnixSocket::listen(exchange.path());  // is left behind
    std::array<UnixSocket, kAtOnce> servers;
    std::atomic<int> serve = 0, refused = 0;
    std::barrier begin(kAtOnce);
    std::vector<std::jthread> threads;
    for (UnixSocket& server : servers)
      threads.emplace_back([&] {
        begin.arrive_and_wait();
        try {
          server = UnixSocket::listen(exchange.path());
          ++serve;
        } catch (const Error&) {
          ++refused;
        }
      });
    threads.clear();
    CHECK(UnixSocket::connect(exchange.path()));
    REQUIRE(serve == 1);
    REQUIRE(refused == kAtOnce - 1);
  }
}

TEST_CASE("who holds the lock for serving in a directory keeps nobody from it for ever") {
  Exchange exchange;
  exchange.server.reset();
  struct stat found {};
  REQUIRE(stat(exchange.directory.c_str(), &found) == 0);
  const std::string name =
      "sluice serves in " + std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const Descriptor held(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  REQUIRE(bind(held.get(), generic, length) == 0);
  const UnixSocket server = UnixSocket::listen(exchange.path());
  CHECK(UnixSocket::connect(exchange.path()));
}

TEST_CASE("a region that cannot be trusted is refused with the reason, and the worker goes on") {
  Exchange exchange;
  const OwnRegion large = arena_of(2 << 20), small = arena_of(100);
  RegionClient client(exchange.path());
  client.share(large);
  client.share(small);
  exchange.settle({&client});
  CHECK(!client.is_shared());
  CHECK_THAT(client.problem(), Contains("2097152 bytes beside 0 that are mapped; the daemon's "
                                        "arena-memory-mib allows 1048576"));
  REQUIRE(exchange.refusals.size() == 1);
  CHECK(exchange.server->arena(small.id()));

  auto hostile = UnixSocket::connect(exchange.path());
  REQUIRE(hostile);
  const Descriptor unsealed(memfd_create("unsealed", MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(unsealed.get(), 4'096) == 0);
  hostile->send(request(1, 9), unsealed.get());
  hostile->send(request(1, 9), -1);                                 // none at all
  hostile->send(request(1, small.id()), small.descriptor().get());  // another worker's id
  hostile->send(request(1, 0), small.descriptor().get());           // none
  exchange.settle({&client});
  CHECK(exchange.refusals.size() == 5);
  CHECK(exchange.server->counters().refused == 5);
  CHECK(!is_closed(*hostile));
  CHECK(exchange.server->arena(small.id())->bytes().size() == 100);
}

TEST_CASE("who sends what is no request loses his connection, and nobody else") {
  Exchange exchange;
  const OwnRegion arena = arena_of(100);
  RegionClient client(exchange.path());
  client.share(arena);
  exchange.settle({&client});
  const auto is_dropped = [&](std::span<const std::byte> message) {
    const auto hostile = UnixSocket::connect(exchange.path());
    REQUIRE(hostile);
    hostile->send(message, arena.descriptor().get());
    exchange.server->poll();
    return is_closed(*hostile);
  };
  auto other_magic = request(1, 9);
  other_magic[0] = std::byte{0};
  CHECK(is_dropped(other_magic));
  CHECK(is_dropped(request(2, 9)));  // a daemon's
  CHECK(is_dropped(request(77, 9)));
  CHECK(is_dropped(std::span(other_magic).first(1)));
  std::vector<std::byte> longer(100'000);
  CHECK(is_dropped(longer));
  exchange.settle({&client});
  CHECK(client.is_shared());
  CHECK(exchange.server->arena(arena.id()));
}

TEST_CASE("whatever a worker sends, another one is served, and no descriptor is kept") {
  Exchange exchange;
  const OwnRegion arena = arena_of(4'096), sent = arena_of(4'096);
  RegionClient client(exchange.path());
  client.share(arena);
  exchange.settle({&client});
  const auto lowest_free = [] { return Descriptor(dup(0)).get(); };
  const int before = lowest_free();
  std::mt19937 random(16);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int i = 0; i < 2'000; ++i) {
    const auto hostile = UnixSocket::connect(exchange.path());
    REQUIRE(hostile);
    for (std::uint32_t m = below(8); m-- > 0;) {
      auto bytes =
          request(static_cast<std::uint16_t>(below(8)), below(2) ? sent.id() : below(3), below(3));
      if (below(4) == 0) bytes[below(kMessageBytes)] = static_cast<std::byte>(random());
      const std::size_t count = below(4) == 0 ? below(kMessageBytes + 1) : kMessageBytes;
      hostile->send(std::span(bytes).first(count), below(2) ? sent.descriptor().get() : -1);
    }
    if (below(2)) exchange.server->poll();
  }
  exchange.settle({&client});
  CHECK(lowest_free() == before);
  CHECK(client.is_shared());
  CHECK(exchange.server->arena(arena.id()));
  CHECK(!exchange.server->arena(sent.id()));
}

TEST_CASE("descriptors that come with no message are closed") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  const UnixSocket ours{Descriptor(ends[0])}, theirs{Descriptor(ends[1])};
  const OwnRegion region = arena_of(4'096);
  std::array<std::byte, kMessageBytes> bytes;
  const int lowest_free = Descriptor(dup(0)).get();
  REQUIRE(theirs.send({}, region.descriptor().get()) == UnixSocket::Io::kDone);
  CHECK(ours.receive(bytes).io == UnixSocket::Io::kClosed);
  CHECK(Descriptor(dup(0)).get() == lowest_free);
}

TEST_CASE("a worker that never reads, or asks for very many, harms no other") {
  Exchange exchange;
  const auto hostile = UnixSocket::connect(exchange.path());
  REQUIRE(hostile);
  bool sends = true;
  for (int i = 0; i < 10'000 && sends; ++i) {
    const auto io = hostile->send(request(3, 0, 1000u + static_cast<std::uint32_t>(i)), -1);
    sends = io != UnixSocket::Io::kClosed;
    exchange.server->poll();
  }
  CHECK(!sends);  // disconnected: there was no room for the answers
  RegionClient client(exchange.path());
  client.ask_for_results({kJob});
  exchange.settle({&client});
  CHECK(client.results({kJob}));

  const auto greedy = UnixSocket::connect(exchange.path());
  std::array<std::byte, kMessageBytes> answer;
  for (std::uint32_t job = 0; job < 100; ++job) {
    REQUIRE(greedy->send(request(3, 0, 1000 + job), -1) == UnixSocket::Io::kDone);
    exchange.server->poll();
    (void)greedy->receive(answer);
  }
  client.ask_for_results({kJob + 1});
  exchange.settle({&client});
  CHECK(client.results({kJob + 1}));
}

TEST_CASE("more workers than there may be are turned away until one goes") {
  Exchange exchange;
  std::vector<std::unique_ptr<RegionClient>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<RegionClient>(exchange.path()));
    clients.back()->ask_for_results({kJob});
    exchange.settle({clients.back().get()});
  }
  CHECK(clients[3]->results({kJob}));
  CHECK(!clients[4]->results({kJob}));
  CHECK(exchange.server->counters().workers_refused > 0);
  clients[0].reset();
  exchange.settle({clients[4].get()});
  CHECK(clients[4]->results({kJob}));
}

TEST_CASE("a daemon that may open no more descriptors says so") {
  Exchange exchange;
  const OwnRegion arena = arena_of(100);
  RegionClient client(exchange.path());
  exchange.settle({&client});
  client.share(arena);
  client.poll();
  const Descriptor next(dup(0));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{static_cast<rlim_t>(next.get()), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  exchange.server->poll();
  setrlimit(RLIMIT_NOFILE, &before);
  client.poll();
  CHECK(!client.is_shared());
  CHECK_THAT(client.problem(), Contains("ulimit -n"));
}
