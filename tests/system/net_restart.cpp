// Daemons that die under load: an echo side, built as a daemon is, is killed with -9 and started
// again, many times, while worker processes continue to send. Their ports must carry packets again
// in both directions, soon after the new daemon is ready, with every byte right. A worker never
// blocks, sends no old frames after a pause, and has every buffer back in the end.
//
//   net_restart               everything this machine allows; exit status 0 only if all was right
//   net_restart echo ...      a daemon, started by the former
//   net_restart ping ...      a worker, started by the former
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/system/net_echo.hpp"

namespace {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;

constexpr std::size_t kWorkers = 3;
constexpr int kLives = 20;
constexpr std::uint32_t kWindow = 64;
constexpr auto kGivenUp = 5ms;  // without an echo: frames under way then count as lost
constexpr auto kOld = 1s;       // an echo of an older datagram is stale
constexpr auto kPause = 3s;     // how long a daemon stays away
constexpr std::uint64_t kRing = 256;

// ---- what the processes share
// --------------------------------------------------------------------------------

struct SharedState {
  struct Worker {
    std::atomic<std::uint64_t> echoes;
    std::atomic<std::uint64_t> stale;
    std::atomic<std::uint64_t> dropped;  // while the link was down
    std::atomic<std::uint64_t> backlog;  // the largest seen
    std::atomic<Duration> longest_turn;
    std::atomic<Duration> recovered;  // of `life`: measured from when the daemon was ready
    std::atomic<bool> link_up;
    std::atomic<int> life;  // the last one that echoed its datagrams
  };
  std::atomic<int> life;
  std::atomic<Time> ready;  // of this life's daemon; kNever until it is
  std::atomic<bool> stop;
  std::array<Worker, kWorkers> workers;
};

class MappedState {
 public:
  explicit MappedState(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(SharedState)) != 0) fail("cannot make " + path);
    void* const memory =
        mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) fail("cannot map " + path);
    state_ = static_cast<SharedState*>(memory);
  }
  ~MappedState() { munmap(state_, sizeof(SharedState)); }
  MappedState(const MappedState&) = delete;
  MappedState& operator=(const MappedState&) = delete;
  SharedState* operator->() const { return state_; }

 private:
  SharedState* state_;
};

template <class T>
void raise_to(std::atomic<T>& value, T seen) {
  if (seen > value.load(std::memory_order_relaxed)) value.store(seen, std::memory_order_relaxed);
}

// ---- the worker
// --------------------------------------------------------------------------------

struct Stamp {
  std::uint32_t sequence;
  std::uint32_t size;
  Time sent;
};

class Pinger {
 public:
  Pinger(const std::string& kind, const std::string& where, SharedState& state,
         SharedState::Worker& mine)
      : payloads_("payloads", 8192, kPayloadMax),
        headers_("headers", 1024, 0),
        state_(state),
        mine_(mine) {
    port_ = std::make_unique<Port>(port_options(device_of(kind, where), kPingIp), payloads_);
    io_ = std::make_unique<DatagramIo>(payloads_, headers_);
    io_->add_port(port_->view(0));
    io_->listen(kPingPort);
    peer_ = echo_side(port_->view(0));
  }

  void run() {
    Idle idle;
    Time last = now();
    while (!state_.stop) {
      const Time t = now();
      raise_to(mine_.longest_turn, t - std::exchange(last, t));
      mine_.link_up = port_->link_up();
      io_->set_link(port_->id(), mine_.link_up);
      const std::size_t n =
          io_->receive([&](const Endpoint& from, Buffer payload) { take(from, payload, t); });
      send(t);
      io_->flush();
      raise_to<std::uint64_t>(mine_.backlog, io_->backlog(port_->id()));
      mine_.dropped = io_->counters().tx_link_down;
      idle.work_done(n);
    }
    print_counters("worker", io_->counters());
  }

  void close() {
    io_.reset();
    port_.reset();
    if (payloads_.available() != payloads_.size() || headers_.available() != headers_.size())
      fail("a worker lost buffers");
  }

 private:
  void send(Time t) {
    const auto mac = io_->resolve(port_->id(), kEchoIp, t);
    if (!mac) return;
    peer_.mac = *mac;
    if (t - progress_ > kGivenUp) {
      progress_ = t;
      under_way_ = 0;
    }
    for (; under_way_ < kWindow; ++under_way_, ++sequence_) {
      const auto size =
          static_cast<std::uint32_t>(sizeof(Stamp) + std::size_t{sequence_} * 7919 % 3000);
      Buffer payload = io_->allocate(size);
      if (!payload) fail("a worker has no buffers left");
      const std::span<std::byte> out = payload.writable();
      const Stamp stamp{sequence_, size, t};
      std::memcpy(out.data(), &stamp, sizeof stamp);
      for (std::size_t i = sizeof stamp; i < size; ++i) out[i] = byte_at(sequence_, i);
      io_->send(peer_, std::move(payload));
    }
  }

  void take(const Endpoint& from, const Buffer& payload, Time t) {
    const std::span<const std::byte> in = payload.bytes();
    Stamp stamp{};
    if (!(from == peer_)) fail("a datagram from someone else");
    if (in.size() < sizeof stamp) fail("an echo is cut short");
    std::memcpy(&stamp, in.data(), sizeof stamp);
    if (stamp.size != in.size()) fail("an echo has another size");
    for (std::size_t i = sizeof stamp; i < in.size(); ++i)
      if (in[i] != byte_at(stamp.sequence, i)) fail("an echo is wrong");
    if (under_way_ > 0) --under_way_;
    progress_ = t;
    ++mine_.echoes;
    if (t - stamp.sent > kOld) ++mine_.stale;
    const int life = state_.life;
    const Time ready = state_.ready;
    if (mine_.life == life || stamp.sent < ready) return;
    mine_.recovered = t - ready;
    mine_.life = life;
  }

  BufferPool payloads_;
  BufferPool headers_;
  SharedState& state_;
  SharedState::Worker& mine_;
  std::unique_ptr<Port> port_;
  std::unique_ptr<DatagramIo> io_;
  Endpoint peer_;
  std::uint32_t sequence_ = 0;
  std::uint32_t under_way_ = 0;
  Time progress_{};
};

int ping_main(const std::string& kind, const std::string& where, const MappedState& state,
              std::size_t number) {
  const Eal eal({});
  Pinger pinger(kind, where, *state.operator->(), state->workers.at(number));
  pinger.run();
  pinger.close();
  return 0;
}

// ---- the daemon
// --------------------------------------------------------------------------------

[[noreturn]] int echo_main(const std::string& kind, const std::string& where,
                           const MappedState& state) {
  const Eal eal({});
  BufferPool payloads("payloads", 8192, kPayloadMax);
  BufferPool headers("headers", 8192, 0);
  if (kind == "vhost") {
    EchoDirectory vhost(where, payloads, headers);
    state->ready = now();
    for (;; std::this_thread::sleep_for(50ms)) vhost.control();
  }
  const Port port(port_options(device_of(kind, where), kEchoIp), payloads);
  EchoLane lane(payloads, headers);
  lane.post([view = port.view(0)](DatagramIo& io) { io.add_port(view); });
  state->ready = now();
  for (;;) pause();
}

// ---- the director
// --------------------------------------------------------------------------------

void connect_and_disconnect(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("cannot connect to " + path);
  close(fd);
}

long long ms(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

class Play {
 public:
  Play(std::string kind, std::string where, std::vector<std::string> worker_prefix,
       std::string worker_where, std::size_t workers)
      : kind_(std::move(kind)), where_(std::move(where)), count_(workers), state_(board_path()) {
    new_daemon();
    for (std::size_t i = 0; i < workers; ++i) {
      std::vector<std::string> args = worker_prefix;
      args.insert(args.end(), {self_, "ping", kind_, worker_where, path_, std::to_string(i)});
      workers_.push_back(std::make_unique<Child>(args));
    }
    wait_for_recovery();
  }
  ~Play() { std::filesystem::remove(path_); }

  void kill_under_load() {
    std::vector<Duration> times;
    for (int life = 0; life < kLives; ++life) {
      wait_for_traffic();
      kill_daemon();
      new_daemon();
      wait_for_recovery();
      for (std::size_t i = 0; i < count_; ++i) times.push_back(state_->workers[i].recovered);
    }
    std::sort(times.begin(), times.end());
    const Duration median = times[times.size() / 2];
    std::printf(
        "%s: %zu workers, %d daemons killed: carries again after %lld ms (median), %lld ms "
        "(at most)\n",
        kind_.c_str(), count_, kLives, ms(median), ms(times.back()));
  }

  // Each daemon dies while it takes over its workers' ports; the first one in the moment in which
  // it has connected.
  void kill_while_connecting() {
    kill_daemon();
    if (kind_ == "vhost") {
      for (const auto& socket : std::filesystem::directory_iterator(where_)) {
        until(
            "a link to be down",
            [&] {
              return std::all_of(workers_begin(), workers_end(),
                                 [](const SharedState::Worker& w) { return !w.link_up; });
            },
            [] {}, 1ms);
        connect_and_disconnect(socket.path());
      }
    }
    new_daemon();
    wait_for_recovery();
    for (int life = 0; life < kLives; ++life) {
      kill_daemon();
      new_daemon();
      until(
          "a daemon", [&] { return state_->ready.load() != kNever; }, [] {}, 1ms);
      std::this_thread::sleep_for(std::chrono::milliseconds(life));
    }
    kill_daemon();
    new_daemon();
    wait_for_recovery();
    std::printf("%s: carries again after %d daemons that died while connecting\n", kind_.c_str(),
                kLives);
  }

  void pause() {
    wait_for_traffic();
    kill_daemon();
    std::vector<std::uint64_t> stale, dropped;
    for (std::size_t i = 0; i < count_; ++i) {
      stale.push_back(state_->workers[i].stale);
      dropped.push_back(state_->workers[i].dropped);
    }
    std::this_thread::sleep_for(kPause);
    new_daemon();
    wait_for_recovery();
    wait_for_traffic();
    for (std::size_t i = 0; i < count_; ++i) {
      stale[i] = state_->workers[i].stale - stale[i];
      dropped[i] = state_->workers[i].dropped - dropped[i];
      std::printf(
          "%s: worker %zu after a pause of %lld ms: %llu stale echoes, %llu dropped "
          "meanwhile, at most %llu waiting, longest turn %lld ms\n",
          kind_.c_str(), i, ms(kPause), static_cast<unsigned long long>(stale[i]),
          static_cast<unsigned long long>(dropped[i]),
          static_cast<unsigned long long>(state_->workers[i].backlog.load()),
          ms(state_->workers[i].longest_turn));
      if (stale[i] > kRing) fail("a burst of stale datagrams after a pause");
      if (kind_ == "vhost" && dropped[i] == 0) fail("a link that is down was not noticed");
    }
  }

  // Without a daemon only the worker itself can take back the frames in the rings.
  void end() {
    wait_for_traffic();
    kill_daemon();
    state_->stop = true;
    for (const auto& worker : workers_) {
      int status = 0;
      until(
          "a worker's end", [&] { return worker->ended(status); }, [] {});
      if (status != 0) fail("a worker failed");
    }
  }

 private:
  std::string board_path() {
    path_ = "/tmp/net_restart." + std::to_string(getpid()) + ".state";
    std::filesystem::remove(path_);
    return path_;
  }

  void kill_daemon() { daemon_->stop(SIGKILL); }

  void new_daemon() {
    state_->ready = kNever;
    ++state_->life;
    daemon_ =
        std::make_unique<Child>(std::vector<std::string>{self_, "echo", kind_, where_, path_});
  }

  void wait_for_recovery() {
    each("carry again", [&](SharedState::Worker& worker) { return worker.life == state_->life; });
  }

  void wait_for_traffic() {
    std::array<std::uint64_t, kWorkers> before{};
    for (std::size_t i = 0; i < count_; ++i) before[i] = state_->workers[i].echoes;
    each("carry traffic", [&](SharedState::Worker& worker) {
      return worker.echoes > before[static_cast<std::size_t>(&worker - &state_->workers[0])] + 1000;
    });
  }

  SharedState::Worker* workers_begin() { return state_->workers.data(); }
  SharedState::Worker* workers_end() { return workers_begin() + count_; }

  template <class Condition>
  void each(const char* what, const Condition& condition) {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::string text = "worker " + std::to_string(i) + "'s link to " + what;
      until(
          text.c_str(), [&] { return condition(state_->workers[i]); },
          [&] {
            int status = 0;
            if (workers_[i]->ended(status)) fail("worker " + std::to_string(i) + " has ended");
          },
          2ms);
    }
  }

  const std::string self_ = std::filesystem::read_symlink("/proc/self/exe");
  std::string kind_, where_, path_;
  std::size_t count_;
  MappedState state_;
  std::unique_ptr<Child> daemon_;
  std::vector<std::unique_ptr<Child>> workers_;
};

struct TemporaryDirectory {
  std::string path = "/tmp/net_restart.XXXXXX";
  TemporaryDirectory() {
    if (!mkdtemp(path.data())) fail("cannot make a directory");
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
};

void over_vhost() {
  const TemporaryDirectory directory;
  {
    Play play("vhost", directory.path, {}, directory.path, kWorkers);
    play.kill_under_load();
    play.kill_while_connecting();
    play.pause();
    play.end();
  }
  if (!std::filesystem::is_empty(directory.path)) fail("sockets were left behind");
}

void over_af_packet() {
  if (geteuid() != 0 || std::system("ip netns list >/dev/null 2>&1") != 0) {
    std::printf("skipped: af_packet: needs root and ip(8)\n");
    return;
  }
  const VethPair veth;
  Play play("af_packet", veth.near_end(), {"ip", "netns", "exec", veth.space()}, veth.far_end(), 1);
  play.kill_under_load();
  play.kill_while_connecting();
  play.pause();
  play.end();
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() >= 4) die_with_parent();
  if (args.size() == 4) return echo_main(args[1], args[2], MappedState(args[3]));
  if (args.size() == 5)
    return ping_main(args[1], args[2], MappedState(args[3]), std::stoul(args[4]));
  over_vhost();
  over_af_packet();
  std::printf("all right\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "net_restart: %s\n", error.what());
  return 1;
}
