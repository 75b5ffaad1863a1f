// How the ranks of one host find each other, and what becomes of those that are none.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/catch.hpp"
#include "tests/unit/temporary_directory.hpp"
#include "worker/host/group.hpp"
#include "worker/host/group_messages.hpp"

namespace host_group_tests {

using namespace sluice;
using namespace sluice::worker::host;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr std::uint32_t kJob = 7;

struct Host {
  GroupConfig config(LocalRank self, std::uint16_t ranks) const {
    GroupConfig config;
    config.alias = {.job = "7"};
    config.job = kJob;
    config.host = "here";
    for (std::uint16_t r = 0; r < ranks; ++r) config.ranks.push_back(Rank{r});
    config.self = self;
    config.directory = directory.path;
    config.build = "this";
    config.world_size = ranks;
    config.block_elements = 256;
    config.payload_bytes = 1472;
    return config;
  }

  const net::testing::TemporaryDirectory directory;
};

std::vector<LocalRank> ranks_of(std::initializer_list<unsigned> list) {
  return {list.begin(), list.end()};
}

/// Polls all until it holds.
template <class Holds>
bool comes(std::vector<std::unique_ptr<Group>>& groups, Holds&& holds) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < end) {
    const Time now = Time{} + std::chrono::steady_clock::now().time_since_epoch();
    for (auto& group : groups)
      if (group) group->poll(now);
    if (holds()) return true;
    std::this_thread::sleep_for(100us);
  }
  return false;
}

bool all_formed(const std::vector<std::unique_ptr<Group>>& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) {
    return !group || group->state() == Group::State::kFormed;
  });
}

template <class T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

Hello hello_of(const GroupConfig& config) {
  Hello hello;
  hello.job = config.job;
  hello.rank = config.ranks[config.self].value;
  hello.world_size = config.world_size;
  hello.block_elements = config.block_elements;
  hello.payload_bytes = config.payload_bytes;
  config.build.copy(hello.build.data(), hello.build.size() - 1);
  return hello;
}

}  // namespace

TEST_CASE("Ranks of a host find each other, and share their tensors") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(4);
  for (const LocalRank r : ranks_of({2, 0, 3, 1}))
    groups[r] = std::make_unique<Group>(host.config(r, 4));
  REQUIRE(comes(groups, [&] { return all_formed(groups); }));
  for (const auto& group : groups) {
    CHECK(group->nonce() == groups[0]->nonce());
    CHECK(group->memory().size() == 4);
  }
  // What one tells, others see.
  groups[1]->memory()[1].published[3] = std::byte{42};
  CHECK(groups[3]->memory()[1].published[3] == std::byte{42});
  groups[2]->memory()[0].slots[5] = std::byte{43};
  CHECK(groups[0]->memory()[0].slots[5] == std::byte{43});

  std::byte* const tensor = memory::Arena::of_process().allocate(1000);
  const auto found = groups[2]->place_of({tensor, 1000});
  REQUIRE(found);
  for (const LocalRank peer : ranks_of({0, 1, 3})) {
    const auto region = groups[peer]->region(2, found->region);
    REQUIRE(region.size() >= found->offset + 1000);
    region[found->offset + peer] = std::byte{7};
    CHECK(tensor[peer] == std::byte{7});
    CHECK(groups[peer]->region(2, found->region + 1).empty());
  }
  memory::Arena::of_process().deallocate(tensor);
  std::vector<std::byte> ordinary(1000);
  CHECK(!groups[2]->place_of(ordinary));

  groups[1].reset();
  std::vector<LocalRank> lost;
  CHECK(comes(groups, [&] {
    for (const LocalRank peer : groups[0]->take_lost()) lost.push_back(peer);
    return lost == std::vector<LocalRank>{1};
  }));
}

TEST_CASE("Ranks of a host find out whether they reach each other's processes") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(3);
  for (const LocalRank r : ranks_of({0, 1, 2})) {
    GroupConfig config = host.config(r, 3);
    config.uses_processes = r != 2;
    groups[r] = std::make_unique<Group>(config);
  }
  REQUIRE(comes(groups, [&] { return all_formed(groups); }));
  CHECK(groups[0]->why_not_reached() == "rank 2: Operation not supported");
  CHECK(groups[1]->why_not_reached() == "rank 2: Operation not supported");
  CHECK(groups[2]->why_not_reached() == "Operation not supported");
  for (const LocalRank r : ranks_of({0, 1, 2})) groups[r].reset();
  for (const LocalRank r : ranks_of({0, 1, 2}))
    groups[r] = std::make_unique<Group>(host.config(r, 3));
  REQUIRE(comes(groups, [&] { return all_formed(groups); }));
  for (const auto& group : groups) CHECK(group->why_not_reached() == "");
}

namespace {

/// A process that has all that this one has, and does nothing.
class Child {
 public:
  Child() : process(fork()) {
    if (process == 0)
      for (;;) pause();
    life = memory::Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void end() {
    if (has_ended) return;
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    has_ended = true;
  }

  const pid_t process;
  memory::Descriptor life;

 private:
  bool has_ended = false;
};

}  // namespace

TEST_CASE("Another process's memory is read and written as long as it lives") {
  std::vector<std::uint64_t> own(1000, 5), copy(own.size());
  Child child;
  const ProcessMemory memory(child.process, child.life.get());
  std::vector<Transfer> transfers;  // more than fit a system call
  for (std::size_t i = 0; i < own.size(); ++i)
    transfers.push_back({reinterpret_cast<std::byte*>(&copy[i]),
                         reinterpret_cast<std::uintptr_t>(&own[own.size() - 1 - i]),
                         sizeof own[0]});
  std::fill(own.begin(), own.end(), 6);
  REQUIRE(memory.read(transfers) == 0);
  CHECK(std::count(copy.begin(), copy.end(), 5) == 1000);
  for (std::size_t i = 0; i < copy.size(); ++i) copy[i] = i;
  REQUIRE(memory.write(transfers) == 0);
  std::fill(copy.begin(), copy.end(), 0);
  REQUIRE(memory.read({&transfers[999], 1}) == 0);
  CHECK(copy[999] == 999);
  CHECK(std::count(own.begin(), own.end(), 6) == 1000);

  // An end that is there, and one that is not.
  transfers.resize(2);
  transfers[1].there = 8;
  CHECK(memory.read(transfers) == EFAULT);
  CHECK(memory.write({&transfers[1], 1}) == EFAULT);
  child.end();
  CHECK(memory.read({transfers.data(), 1}) == ESRCH);
  CHECK(ProcessMemory(getpid(), -1).read({transfers.data(), 1}) == ESRCH);
}

TEST_CASE("Processes have a nearest one from which they descend") {
  const Child first, second;
  const auto ancestor = [](std::vector<pid_t> processes) { return common_ancestor(processes); };
  CHECK(ancestor({first.process}) == first.process);
  CHECK(ancestor({first.process, second.process}) == getpid());
  CHECK(ancestor({first.process, getpid()}) == getpid());
  CHECK(ancestor({first.process, 1}) == 0);
  CHECK(ancestor({}) == 0);
}

TEST_CASE("A rank that has formed may be gone before its peers have") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(2);
  for (const LocalRank r : ranks_of({0, 1})) groups[r] = std::make_unique<Group>(host.config(r, 2));
  REQUIRE(comes(groups, [&] { return groups[1]->state() == Group::State::kFormed; }));
  groups[1].reset();
  CHECK(comes(groups, [&] { return groups[0]->state() == Group::State::kFormed; }));
}

TEST_CASE("A rank that has formed and is gone is not taken again") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(1);
  groups[0] = std::make_unique<Group>(host.config(0, 3));
  const auto poll_some = [&] { comes(groups, [n = 0]() mutable { return ++n > 5; }); };
  const auto greet = [&] {
    auto socket = memory::UnixSocket::connect(host.directory.path + "/here.7.0");
    REQUIRE(socket);
    socket->send(bytes_of(hello_of(host.config(1, 3))), -1);
    poll_some();
    return socket;
  };
  const auto is_answered = [](const memory::UnixSocket& socket) {
    Hello hello;
    const auto received = socket.receive(std::as_writable_bytes(std::span(&hello, 1)));
    return received.io == memory::UnixSocket::Io::kDone && received.bytes == sizeof hello;
  };
  {
    const auto socket = greet();
    CHECK(is_answered(*socket));
    const BoardSizes sizes;
    const memory::OwnRegion told("told", MappedBoard::published_bytes(sizes),
                                 memory::OwnRegion::Writers::kThisOnly);
    const memory::OwnRegion slots("slots", sizes.slots_bytes(),
                                  memory::OwnRegion::Writers::kTrusted);
    socket->send(bytes_of(Message{.kind = Kind::kProof}), told.descriptor().get());
    socket->send(bytes_of(Message{.kind = Kind::kSlots}), slots.descriptor().get());
    socket->send(bytes_of(Message{.kind = Kind::kFormed}), -1);
  }
  poll_some();
  CHECK(groups[0]->missing().size() == 1);  // rank 2
  CHECK(!is_answered(*greet()));
}

TEST_CASE("A rank that gives up before may come again") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(3);
  groups[0] = std::make_unique<Group>(host.config(0, 3));
  for (int i = 0; i < 3; ++i) {
    groups[1] = std::make_unique<Group>(host.config(1, 3));
    REQUIRE(comes(groups, [&] { return !groups[0]->missing().contains(Rank{1}); }));
    groups[1].reset();
    REQUIRE(comes(groups, [&] { return groups[0]->missing().contains(Rank{1}); }));
  }
  for (const LocalRank r : ranks_of({1, 2})) groups[r] = std::make_unique<Group>(host.config(r, 3));
  CHECK(comes(groups, [&] { return all_formed(groups); }));
}

TEST_CASE("Ranks that disagree are told in what") {
  const Host host;
  GroupConfig other = host.config(1, 2);
  std::string saying;
  SECTION("in the world size") {
    other.world_size = 3;
    saying = "rank 1 has world size 3, rank 0 has 2";
  }
  SECTION("in the blocks") {
    other.block_elements = 64;
    saying = "rank 1 has block elements 64, rank 0 has 256";
  }
  SECTION("in the build") {
    other.build = "that";
    saying = "rank 1 is of build that of this library, and this rank of this: use one build";
  }
  SECTION("in the secret") {
    other.secret = std::make_shared<const Secret>("of-sixteen-letters");
    saying = "rank 1 has a secret, and this rank has none";
  }
  std::vector<std::unique_ptr<Group>> groups(2);
  groups[0] = std::make_unique<Group>(host.config(0, 2));
  groups[1] = std::make_unique<Group>(other);
  REQUIRE(comes(groups, [&] { return groups[0]->state() == Group::State::kFailed; }));
  CHECK_THAT(groups[0]->failure()->what(), Contains(saying));
  CHECK(comes(groups, [&] { return groups[1]->state() == Group::State::kFailed; }));
}

TEST_CASE("Ranks prove that they have the same secret") {
  const Host host;
  std::vector<std::unique_ptr<Group>> groups(2);
  GroupConfig first = host.config(0, 2), second = host.config(1, 2);
  first.secret = std::make_shared<const Secret>("of-sixteen-letters");
  second.secret = first.secret;
  SECTION("which they do") {}
  SECTION("which one does not") {
    second.secret = std::make_shared<const Secret>("of-others-as-many");
  }
  groups[0] = std::make_unique<Group>(first);
  groups[1] = std::make_unique<Group>(second);
  if (first.secret == second.secret) {
    CHECK(comes(groups, [&] { return all_formed(groups); }));
  } else {
    REQUIRE(comes(groups, [&] { return groups[0]->state() == Group::State::kFailed; }));
    CHECK(groups[0]->failure()->code() == ErrorCode::kNotAuthenticated);
  }
}

TEST_CASE("A second process with the same rank is refused") {
  const Host host;
  const Group first(host.config(0, 2));
  CHECK(first.state() == Group::State::kForming);
  const Group second(host.config(0, 2));
  REQUIRE(second.state() == Group::State::kFailed);
  CHECK_THAT(second.failure()->what(), Contains("two processes joined as rank 0"));
}

TEST_CASE("Whatever a process of the same user sends, the ranks find each other") {
  const Host host;
  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  std::vector<std::unique_ptr<Group>> groups(3);
  groups[0] = std::make_unique<Group>(host.config(0, 3));
  const std::string path = host.directory.path + "/here.7.0";
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  REQUIRE(ftruncate(unsealed, 1 << 20) == 0);
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const memory::OwnRegion small("small", 64, memory::OwnRegion::Writers::kTrusted);
  for (int i = 0; i < 300 && groups[0]->state() == Group::State::kForming; ++i) {
    auto socket = memory::UnixSocket::connect(path);
    if (!socket) {
      comes(groups, [n = 0]() mutable { return ++n > 3; });
      continue;
    }
    Hello hello = hello_of(host.config(static_cast<LocalRank>(1 + below(2)), 3));
    // Disagreements end the group, as they should: so these are not drawn.
    if (below(4) == 0) hello.rank = static_cast<std::uint16_t>(below(300));
    if (below(8) == 0) hello.job = static_cast<std::uint32_t>(random());
    if (below(8) == 0) hello.sizes.slots = random();
    if (below(4) != 0) socket->send(bytes_of(hello), -1);
    for (std::uint64_t sent = below(6); sent > 0; --sent) {
      Message message;
      message.kind = static_cast<Kind>(below(10));
      if (message.kind == Kind::kFarewell) continue;  // it ends the group, too
      message.id = below(3);
      const int descriptors[] = {-1, unsealed, pipe_ends[0], small.descriptor().get()};
      const auto whole = bytes_of(message);
      socket->send(below(5) == 0 ? whole.first(below(whole.size())) : whole, descriptors[below(4)]);
    }
    comes(groups, [n = 0, most = below(4)]() mutable { return ++n > static_cast<int>(most); });
  }
  close(unsealed);
  for (const int end : pipe_ends) close(end);
  REQUIRE(groups[0]->state() == Group::State::kForming);
  CHECK(groups[0]->missing().size() == 2);
  for (const LocalRank r : ranks_of({1, 2})) groups[r] = std::make_unique<Group>(host.config(r, 3));
  CHECK(comes(groups, [&] { return all_formed(groups); }));
}

}  // namespace host_group_tests
