// What the programs that test common/net with real processes share: datagrams that can be checked,
// an echo side built as a daemon is, child processes and a veth pair.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/idle.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/eal.hpp"
#include "common/net/vhost.hpp"

extern char** environ;

namespace sluice::net::testing {

using namespace std::chrono_literals;

inline constexpr std::uint16_t kEchoPort = 6000;
inline constexpr std::uint16_t kPingPort = 6001;
inline constexpr std::uint32_t kEchoIp = kVhostAggregatorIpv4;
inline constexpr std::uint32_t kPingIp = kVhostWorkerIpv4;
inline constexpr std::uint16_t kMtu = 9000;
inline constexpr std::size_t kPayloadMax = kMtu - kIpv4Bytes - kUdpBytes;
inline constexpr auto kTimeLimit = 30s;

/// Ends the program by way of its main, so that children and network namespaces go.
[[noreturn]] inline void fail(const std::string& what) {
  throw std::runtime_error(what);
}

/// Children end with the program that started them, whatever ends it.
inline void die_with_parent() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

inline std::byte byte_at(std::uint32_t sequence, std::size_t i) {
  return static_cast<std::byte>(sequence * 31 + i);
}

inline void print_counters(const char* who, const IoCounters& counters) {
  std::printf("  %s:", who);
  for (const auto& [name, member] : kIoCounterNames)
    if (counters.*member)
      std::printf(" %s=%llu", std::string(name).c_str(),
                  static_cast<unsigned long long>(counters.*member));
  std::printf("\n");
}

inline PortOptions port_options(const std::string& device, std::uint32_t ipv4) {
  PortOptions options;
  options.device = device;
  options.mtu = kMtu;
  options.ipv4 = ipv4;
  return options;
}

inline std::string device_of(const std::string& kind, const std::string& where) {
  return kind == "vhost" ? worker_device(where, unique_socket_name("ping"))
                         : "net_af_packet0,iface=" + where;
}

inline Endpoint echo_side(const PortView& port) {
  return {.port_id = port.id,
          .mac = {},
          .ipv4 = kEchoIp,
          .udp_port = kEchoPort,
          .local_udp_port = kPingPort,
          .off_machine = port.off_machine};
}

// A lane that echoes what it receives. It keeps a reference to every second echo for a while, so
// that the echo is sent as a header and a shared payload.
class EchoLane {
 public:
  EchoLane(BufferPool& payloads, BufferPool& headers)
      : io_(payloads, headers), thread_([this] { run(); }) {}
  ~EchoLane() { stop(); }

  void stop() {
    if (!thread_.joinable()) return;
    stop_ = true;
    thread_.join();
    print_counters("echo", io_.counters());
  }

  /// Runs `command` on the lane, between two turns.
  void post(std::function<void(DatagramIo&)> command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }

  std::uint64_t echoed() const { return echoed_.load(std::memory_order_relaxed); }

 private:
  void run() {
    const ThreadRegistration registration;
    io_.listen(kEchoPort);
    Idle idle;
    while (!stop_) {
      take_commands();
      const std::size_t n = io_.receive([&](const Endpoint& from, Buffer payload) {
        const std::uint64_t i = echoed_.load(std::memory_order_relaxed);
        if (i % 2) history_[i / 2 % history_.size()] = payload.share();
        io_.send(from, std::move(payload));
        echoed_.store(i + 1, std::memory_order_relaxed);
      });
      io_.flush();
      idle.work_done(n);
    }
    for (Buffer& kept : history_) kept = {};
  }

  void take_commands() {
    std::vector<std::function<void(DatagramIo&)>> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (const auto& command : commands) command(io_);
  }

  DatagramIo io_;
  std::array<Buffer, 8> history_;
  std::atomic<std::uint64_t> echoed_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::function<void(DatagramIo&)>> commands_;
  std::thread thread_;
};

/// A lane behind a vhost directory. Call `control` as often as a daemon does.
class EchoDirectory {
 public:
  EchoDirectory(const std::string& directory, BufferPool& payloads, BufferPool& headers)
      : lane_(payloads, headers) {
    VhostOptions options;
    options.port = port_options("", kEchoIp);
    VhostEvents events;
    events.attached = [this](Port& port) {
      lane_.post([view = port.view(0)](DatagramIo& io) { io.add_port(view); });
    };
    events.detaching = [this](std::uint16_t id) {
      lane_.post([this, id](DatagramIo& io) {
        io.remove_port(id);
        directory_->released(id);
      });
    };
    BufferPool* const pools[] = {&payloads};
    directory_ = std::make_unique<VhostDirectory>(directory, options, pools, std::move(events));
  }
  ~EchoDirectory() { lane_.stop(); }

  void control() { directory_->poll(); }
  std::size_t ports() const { return directory_->ports(); }
  const VhostDirectory::Counters& counters() const { return directory_->counters(); }
  std::uint64_t echoed() const { return lane_.echoed(); }

 private:
  EchoLane lane_;
  std::unique_ptr<VhostDirectory> directory_;
};

class Child {
 public:
  explicit Child(std::vector<std::string> args) {
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    std::fflush(stdout);
    if (posix_spawnp(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0)
      fail("cannot start " + args[0]);
  }
  ~Child() {
    if (pid_ > 0) stop(SIGKILL);
  }

  void stop(int signal) {
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  bool ended(int& status) {
    if (waitpid(pid_, &status, WNOHANG) == 0) return false;
    pid_ = -1;
    return true;
  }

 private:
  pid_t pid_ = -1;
};

inline void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) fail("command failed: " + command);
}

/// Calls `control` as often as a daemon does, until `done`.
inline void until(const char* what, const std::function<bool()>& done,
                  const std::function<void()>& control, Duration pace = 20ms) {
  for (const Time give_up = now() + 2 * kTimeLimit; !done();) {
    if (now() > give_up) fail(std::string("timed out waiting for ") + what);
    control();
    std::this_thread::sleep_for(pace);
  }
}

// A veth pair, one end in a network namespace of its own.
class VethPair {
 public:
  VethPair() {
    run("ip netns add " + space_);
    run("ip link add " + near_ + " mtu 9000 type veth peer name " + far_ + " mtu 9000 netns " +
        space_);
    run("ip link set " + near_ + " up");
    run("ip -n " + space_ + " link set " + far_ + " up");
  }
  ~VethPair() { run("ip netns del " + space_); }
  const std::string& space() const { return space_; }
  const std::string& near_end() const { return near_; }
  const std::string& far_end() const { return far_; }

 private:
  std::string space_ = "netping" + std::to_string(getpid());
  std::string near_ = "npa" + std::to_string(getpid());
  std::string far_ = "npb" + std::to_string(getpid());
};

}  // namespace sluice::net::testing
