// The processes of one host that are ranks of a job: how they find each other, and what they send
// to each other by sockets.
//
// Each rank serves a socket in a directory that only its user can write to, and connects to the
// sockets of lower ranks. Both sides say who they are, prove the job's secret, if there is one, and
// pass on the memory for a Board (board.hpp). After that a socket carries regions with tensors and
// wake-ups. When it closes, the process has ended; a descriptor of the process shows that, too, as
// its children may keep the socket open.
//
// Before that, each rank tries to read and write a word in every other rank's process, and reports
// the outcome to that rank. So a rank knows whether the others can access its tensors there.
//
// Nothing here blocks or waits. A peer that sends what it must not loses its connection.
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
#include "worker/engine/job_label.hpp"
#include "worker/host/engine/board.hpp"
#include "worker/host/mapped_board.hpp"
#include "worker/host/process_memory.hpp"
#include "worker/memory/arena.hpp"
#include "worker/memory/region.hpp"

namespace sluice::worker::host {

struct Hello;
struct Message;

/// The directory with the sockets of this user's ranks; it is made if it is missing. Throws
/// kUnavailable if other users can write to it.
std::string sockets_directory();

struct GroupConfig {
  JobLabel alias;
  std::uint32_t job = 0;
  std::string host;         ///< its name; ranks with another name are on another host
  std::vector<Rank> ranks;  ///< of the group, ascending, with their numbers in the job
  LocalRank self = 0;
  std::string directory;                 ///< sockets_directory()
  std::shared_ptr<const Secret> secret;  ///< or null
  std::string build;
  BoardSizes sizes;
  bool uses_processes = true;  ///< permit peers to access this process, and access theirs
  // These must be the same on all ranks, or the ranks disagree.
  std::uint16_t world_size = 1;
  std::uint16_t block_elements = 0;
  std::uint16_t payload_bytes = 0;
};

class Group {
 public:
  enum class State {
    kForming,
    kProbing,  ///< all peers have come; they probe each other's processes
    kFormed,
    kFailed,  ///< failure() says why
  };

  /// Begins to form. Throws kUnavailable if there is no socket or no memory, and kFormationFailed
  /// if another process is this rank.
  explicit Group(GroupConfig config);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Takes what has come; while the group forms, connects to the others. Returns whether anything
  /// came.
  bool poll(Time now);
  /// Readable when poll() has something to take.
  int descriptor() const { return events_.get(); }

  State state() const { return state_; }
  const std::optional<Error>& failure() const { return failure_; }
  const std::optional<AbortInfo>& abort_info() const { return abort_info_; }
  RankSet missing() const;  ///< ranks of the job that have not come
  /// The last fault of a peer's memory, if any: "rank 1: ..."
  const std::string& problem() const { return problem_; }
  /// A random number, the same on all ranks once the group has formed.
  std::uint64_t nonce() const { return lowest_nonce_; }

  /// Leaves the group, whose place another one may take. The peers see that this rank has gone.
  void close();

  /// The memory of all ranks for a Board, once formed.
  std::vector<RankMemory> memory();
  void wake(LocalRank peer);
  /// Peers whose processes have ended since the last call.
  std::vector<LocalRank> take_lost() { return std::exchange(lost_, {}); }
  pid_t process_of(LocalRank peer) const { return peers_[peer].process; }

  /// Where a tensor lies that all peers can access. Nothing if it lies in no region, or if a socket
  /// had no room for the message.
  std::optional<Place> place_of(std::span<const std::byte> tensor);
  /// A region of a peer; empty if it has shared none with this number.
  std::span<std::byte> region(LocalRank peer, std::uint64_t id);
  /// Why some peer cannot access this process's memory; empty if all can.
  std::string why_not_reached() const;
  ProcessMemory process_memory(LocalRank peer) const;
  /// Unmaps regions that peers have taken back. Call it when no op uses them.
  void forget_retired() { retired_.clear(); }

 private:
  struct Peer {
    std::optional<memory::UnixSocket> socket = {};
    memory::Descriptor life = {};  ///< readable once its process has ended
    pid_t process = 0;
    Time connect_due = {};
    bool has_said_hello = false;
    bool is_proven = false;
    bool has_formed = false;          ///< it has formed on its side; it may have gone since
    std::optional<int> reached = {};  ///< the outcome of its probe of our process: an errno, or 0
    std::uint64_t nonce = 0;
    memory::Mapping published = {}, slots = {};
    std::map<std::uint64_t, memory::Mapping> regions = {};

    bool is_in() const { return is_proven && !published.bytes().empty() && !slots.bytes().empty(); }
  };
  std::size_t local_ranks() const { return config_.ranks.size(); }
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
  void drop(LocalRank peer);
  void watch_life(Peer& peer) const;
  bool is_missing(const Peer& peer) const;
  void begin_probing();
  int probe(LocalRank peer, std::uint64_t address) const;
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
  const memory::Descriptor events_;  // epoll of all sockets and processes
  std::optional<memory::UnixSocket> served_;
  memory::OwnRegion published_, slots_;
  const std::uint64_t nonce_;
  std::uint64_t lowest_nonce_ = 0;
  std::vector<Peer> peers_;                       // by local rank; ours is empty
  std::vector<memory::UnixSocket> unidentified_;  // have not said yet which rank they are
  std::vector<LocalRank> lost_;
  std::vector<memory::Mapping> retired_;
  std::vector<std::uint64_t> probed_;  // a word for each peer, which reads and writes it
  std::optional<TracerPermit> permit_;
  memory::Arena& arena_ = memory::Arena::of_process();
  std::uint64_t arena_changes_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const memory::OwnRegion>> shared_;  // with all peers
};

}  // namespace sluice::worker::host
