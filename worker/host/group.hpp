// The processes of one host that are ranks of a job: how they find each other, and what passes
// between them by sockets.
//
// Each serves a socket in a directory that its user alone can write, and connects to those of the
// lower ranks. Both sides say what they are, prove the job's secret, if it has one, and pass on the
// memory for a Board (board.hpp). From then on a socket carries regions with tensors, wake-ups, and
// by its end that a process is gone; a descriptor of that process tells it, too, as its children
// may keep the socket open.
//
// Before that, each reads and writes a word of each other one's process, and tells it what came of
// that: so a rank knows whether its mates reach its tensors there.
//
// Nothing here blocks or waits. A mate that says what it should not loses its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/memory/unix_socket.hpp"
#include "common/protocol/secret.hpp"
#include "worker/engine/known_as.hpp"
#include "worker/host/engine/board.hpp"
#include "worker/host/mapped_board.hpp"
#include "worker/host/process_memory.hpp"
#include "worker/memory/arena.hpp"
#include "worker/memory/region.hpp"

namespace sluice::worker::host {

struct Hello;
struct Message;

/// The directory in which the sockets of this user's ranks are, which is made if it is missing.
/// Throws kUnavailable if others can write to it.
std::string sockets_directory();

struct GroupConfig {
  KnownAs alias;
  std::uint32_t job = 0;
  std::string host;         ///< its name: ranks with another one are not of this host
  std::vector<Rank> ranks;  ///< of the group, rising, by their numbers in the job
  LocalRank self = 0;
  std::string directory;                 ///< sockets_directory()
  std::shared_ptr<const Secret> secret;  ///< or null
  std::string build;
  BoardSizes sizes;
  bool uses_processes = true;  ///< whether it reaches its mates' processes, and they its own
  // The same on all ranks, or they disagree.
  std::uint16_t world_size = 1;
  std::uint16_t block_elements = 0;
  std::uint16_t payload_bytes = 0;
};

class Group {
 public:
  enum class State {
    kForming,
    kProbing,  ///< has all its mates, and finds out whether they reach each other's processes
    kFormed,
    kFailed,  ///< see failure()
  };

  /// Begins to form. Throws kUnavailable where there is no socket or memory to be had, and
  /// kFormationFailed where another process is this rank.
  explicit Group(GroupConfig config);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Takes what has come; while it forms, seeks the others. Whether anything came.
  bool poll(Time now);
  /// Readable when poll() has something to take.
  int descriptor() const { return events_.get(); }

  State state() const { return state_; }
  const std::optional<Error>& failure() const { return failure_; }
  const std::optional<AbortInfo>& abort_info() const { return abort_info_; }
  RankSet missing() const;  ///< the job's ranks that have not come
  /// What was wrong with a mate's memory last, if anything: "rank 1: ..."
  const std::string& problem() const { return problem_; }
  /// Random, and the same on all ranks, once formed.
  std::uint64_t nonce() const { return lowest_nonce_; }

  /// Is over: another group may have its place. Mates see that this rank is gone.
  void close();

  /// For a Board, once formed.
  std::vector<RankMemory> memory();
  void wake(LocalRank mate);
  /// Whose processes have ended, since the last call.
  std::vector<LocalRank> take_lost() { return std::exchange(lost_, {}); }
  pid_t process_of(LocalRank mate) const { return peers_[mate].process; }

  /// Where a tensor lies that all mates can reach; none: it lies in no region, or there was no room
  /// to tell them.
  std::optional<Place> place_of(std::span<const std::byte> tensor);
  /// A mate's region; empty if it has shared none of this number.
  std::span<std::byte> region(LocalRank mate, std::uint64_t id);
  /// Why some mate cannot reach this process's memory; empty: all can.
  std::string why_not_reached() const;
  ProcessMemory process_memory(LocalRank mate) const;
  /// Regions that mates have taken back stay mapped until this is called: no op uses them.
  void forget_retired() { retired_.clear(); }

 private:
  struct Peer {
    std::optional<memory::UnixSocket> socket = {};
    memory::Descriptor life = {};  ///< readable once its process has ended
    pid_t process = 0;
    Time connect_due = {};
    bool has_said_hello = false;
    bool is_proven = false;
    bool has_formed = false;          ///< on its side; it may be gone since
    std::optional<int> reached = {};  ///< what became of its probe of our process: an errno, or 0
    std::uint64_t nonce = 0;
    memory::Mapping told = {}, slots = {};
    std::map<std::uint64_t, memory::Mapping> regions = {};

    bool is_in() const { return is_proven && !told.bytes().empty() && !slots.bytes().empty(); }
  };
  std::size_t mates() const { return config_.ranks.size(); }
  std::string path_of(LocalRank rank) const;
  void serve();
  void sweep() const;
  void accept();
  void connect(LocalRank to, Time now);
  bool say_hello(const memory::UnixSocket& socket);
  bool identify(memory::UnixSocket& socket);
  bool take_hello(const Hello& hello, LocalRank from);
  bool introduce(Peer& peer);
  bool receive(LocalRank from);
  bool take(LocalRank from, const Message& message, memory::Descriptor descriptor);
  bool take_region(Peer& peer, std::uint64_t id, const memory::Descriptor& descriptor);
  void drop(LocalRank mate);
  void watch_life(Peer& peer) const;
  bool is_missing(const Peer& peer) const;
  void begin_probing();
  int probe(LocalRank mate, std::uint64_t address) const;
  void become_formed();
  void fail(const AbortInfo& why);
  void fail(const Error& error);
  bool share(const memory::OwnRegion& region);
  void take_back_regions();

  const GroupConfig config_;
  State state_ = State::kForming;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  std::string problem_;
  const memory::Descriptor events_;  // epoll, of all sockets and lives
  std::optional<memory::UnixSocket> served_;
  memory::OwnRegion told_, slots_;
  const std::uint64_t nonce_;
  std::uint64_t lowest_nonce_ = 0;
  std::vector<Peer> peers_;                       // by local rank; ours is empty
  std::vector<memory::UnixSocket> unidentified_;  // have not said yet which rank they are
  std::vector<LocalRank> lost_;
  std::vector<memory::Mapping> retired_;
  std::vector<std::uint64_t> probed_;  // a word for each mate, which reads and writes it
  std::optional<TracerPermit> permit_;
  memory::Arena& arena_ = memory::Arena::of_process();
  std::uint64_t arena_changes_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const memory::OwnRegion>> shared_;  // with all mates
};

}  // namespace sluice::worker::host
