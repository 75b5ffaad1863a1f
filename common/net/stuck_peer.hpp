// Ends waits for vhost peers. DPDK reads and writes their sockets without a time-out, on threads
// that serve all ports, and a lane calls a worker by a write: a peer that stops in the middle of a
// message, or gave what cannot be written to, would hold up the others for ever.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/time.hpp"

namespace sluice::net {

/// DPDK's threads: the one that talks with all vhost peers of a daemon, and the one on which a
/// worker's ports talk with theirs after they were opened.
extern const std::string_view kVhostThread;
extern const std::string_view kInterruptThread;

/// A thread of this process by its name; 0: there is none.
pid_t find_thread(std::string_view name);

/// What the thread waits to read, to write or to look at just now; -1: it does not, or
/// the kernel does not say (it does in /proc/self/task/ID/syscall).
int descriptor_waited_for(pid_t thread);

/// Makes whoever waits for the descriptor go on: ends a Unix socket, empties a pipe or an eventfd.
/// The path of the socket, which one of its two ends has; empty if there is none.
std::string let_go(int descriptor);

/// Lets go of a peer that the thread waits for just now, if it does.
void end_wait(pid_t thread);

/// Interrupts a thread's wait for a peer, whatever it waits for, in a process that handles SIGURG
/// (memory::close_on_own_threads): in others nothing happens.
void interrupt(pid_t thread);

/// Notices that a thread waits for one and the same peer, which a peer in order never makes it do.
class StuckPeerWatch {
 public:
  /// How long: each message is sent in one piece, and an answer fits into a socket's buffer.
  static constexpr Duration kTimeLimit = std::chrono::milliseconds(250);

  explicit StuckPeerWatch(std::string_view thread) : name_(thread) {}  ///< of a name that stays

  /// To be called many times in that period. What it waits for; -1: nothing for so long.
  int look(Time now);

  pid_t thread() const { return thread_; }  ///< 0: it was not found yet

 private:
  static constexpr unsigned kLooksMin = 4;  // this process may itself have been stopped

  std::string_view name_;
  pid_t thread_ = 0;
  int descriptor_ = -1;
  Time since_{};
  unsigned looks_ = 0;
};

}  // namespace sluice::net
