// Ends waits for vhost peers. DPDK reads and writes their sockets without a time-out, on threads
// that serve all ports, and a lane signals a worker by a write. So a peer that stops in the middle
// of a message, or that gave a descriptor that cannot be written to, would block the others for
// ever.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/time.hpp"

namespace sluice::net {

/// Threads of DPDK: the one that talks with all vhost peers of a daemon; and the one on which a
/// worker's ports talk with their peers after they were opened.
extern const std::string_view kVhostThread;
extern const std::string_view kInterruptThread;

/// A thread of this process, by its name; 0 if there is none.
pid_t find_thread(std::string_view name);

/// The descriptor for which the thread waits now to read, write or poll it; -1 if there is none, or
/// if the kernel does not say (it does in /proc/self/task/ID/syscall).
int descriptor_waited_for(pid_t thread);

/// Makes a thread that waits for the descriptor continue: ends a Unix socket, or empties a pipe or
/// an eventfd. Returns the path of the socket, which one of its two ends has; empty if there is
/// none.
std::string let_go(int descriptor);

/// Disconnects the peer for which the thread waits now, if there is one.
void end_wait(pid_t thread);

/// Interrupts a thread's wait for a peer, whatever kind of wait it is, in a process that handles
/// SIGURG (memory::close_on_own_threads). In other processes nothing happens.
void interrupt(pid_t thread);

/// Notices that a thread waits for the same peer for a long time. A correct peer never causes that.
class StuckPeerWatch {
 public:
  /// A correct peer sends each message in one piece, and an answer fits into a socket's buffer.
  static constexpr Duration kTimeLimit = std::chrono::milliseconds(250);

  explicit StuckPeerWatch(std::string_view thread) : name_(thread) {}  ///< `thread` stays valid

  /// To be called many times per kTimeLimit. Returns the descriptor for which the thread waits; -1
  /// if it has not waited for so long.
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
