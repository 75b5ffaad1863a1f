// How regions pass between a daemon and the workers of its machine: over a Unix socket beside their
// ports. A worker shares its arenas, each once; the daemon maps them. For each job that a worker
// joins it asks for the region in which the sums of the job's next session will lie. A worker whose
// daemon comes back shares all again.
//
// Neither side blocks: both are polled, the daemon's as soon as something comes. A peer that sends
// what it should not, or does not read, loses its connection, and nobody else notices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/region.hpp"
#include "common/memory/unix_socket.hpp"

namespace sluice::memory {

/// Whose sums a region is for: a job's, at one lane of its daemon.
struct JobAtLane {
  std::uint32_t job = 0;
  std::uint16_t lane = 0;
  friend auto operator<=>(const JobAtLane&, const JobAtLane&) = default;
};

struct RegionServerOptions {
  std::size_t arena_bytes_max = 0;        ///< of all arenas of one worker together
  std::size_t arenas_max = 0;             ///< of one worker
  std::size_t results_bytes = 0;          ///< of a region for a job's sums, at most
  std::size_t results_max = 0;            ///< regions of a lane that wait for their session
  std::size_t workers_max = 0;            ///< connections
  std::size_t of_process_max = SIZE_MAX;  ///< connections of one process
  std::uint16_t lanes = 1;                ///< each gives a job a region of its own
};

/// What a RegionServer tells its owner, from within poll().
struct RegionServerEvents {
  std::function<void(const std::string& why)> refused;  ///< a worker, or its request
  std::function<void(pid_t process)> lost;              ///< memory of a worker: it is disconnected
};

/// The daemon's side. `poll` belongs to the control thread, which maps and unmaps; the lane takes
/// what it needs for a session.
class RegionServer {
 public:
  struct Counters {
    std::uint64_t mapped = 0;   ///< arenas
    std::uint64_t refused = 0;  ///< requests
    std::uint64_t workers_refused = 0;
    std::uint64_t workers_lost = 0;  ///< their memory failed
  };

  /// Throws as UnixSocket::listen.
  RegionServer(const std::string& path, const RegionServerOptions& options,
               RegionServerEvents events);
  ~RegionServer();
  RegionServer(const RegionServer&) = delete;
  RegionServer& operator=(const RegionServer&) = delete;

  /// Takes connections and requests, some at a time, and unmaps what nobody uses any more. A worker
  /// whose memory has failed loses its connection, and may come again.
  void poll();
  /// Readable while there are connections or requests to take.
  int descriptor() const { return arrivals_.get(); }

  /// The arena of this id, while its worker is connected; who holds it may read it longer. Only if
  /// the worker has shared `same_worker_as`, too: an id alone, which others may have learned, opens
  /// nobody's memory. 0: whoever's it is. For any thread.
  std::shared_ptr<const PeerRegion> arena(std::uint64_t id, std::uint64_t same_worker_as = 0) const;
  /// Rises after some arena is not to be found any more: who holds some should look whether they
  /// still are. For any thread.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  /// The region that was given out for the job's next session, to that session; null if it is not
  /// this one. For any thread.
  std::shared_ptr<OwnRegion> take_results(JobAtLane job, std::uint64_t id);
  /// How long that region is; 0: it is not this one. For any thread.
  std::size_t results_bytes(JobAtLane job, std::uint64_t id) const;

  const Counters& counters() const { return counters_; }

 private:
  struct Worker {
    UnixSocket socket;
    std::vector<std::shared_ptr<const PeerRegion>> arenas = {};
    std::size_t arena_bytes = 0;
  };
  struct Arena {
    std::shared_ptr<const PeerRegion> region;
    const Worker* owner = nullptr;
  };
  struct Results {
    std::shared_ptr<OwnRegion> region;
    std::vector<const Worker*> asked_by = {};
  };

  std::string refusal_of(const UnixSocket& socket) const;
  bool has_lost_memory(const Worker& worker);
  bool serve(Worker& worker);
  bool share(Worker& worker, std::uint64_t id, UnixSocket::Received& received);
  bool forget(Worker& worker, std::uint64_t id);
  bool forget_results(const Worker& worker, JobAtLane job);
  bool give_results(Worker& worker, JobAtLane job, std::uint64_t asked, std::uint16_t question);
  std::shared_ptr<OwnRegion> results_asked_by(Worker& worker, JobAtLane job, std::size_t bytes);
  bool may_ask_for_more(const Worker& worker, std::uint16_t lane) const;
  bool refuse(Worker& worker, std::uint64_t id, const std::string& why);
  bool refuse_results(Worker& worker, JobAtLane job, std::uint16_t question,
                      const std::string& why);
  void watch(const UnixSocket& socket) const;
  void drop(Worker& worker);
  std::map<JobAtLane, Results>::iterator withdraw(const Worker& worker,
                                                  std::map<JobAtLane, Results>::iterator entry);
  void unmap_unused();

  const std::string path_;
  const RegionServerOptions options_;
  const RegionServerEvents events_;
  UnixSocket socket_;
  const Descriptor arrivals_;  // epoll, of that and of the workers' sockets
  std::list<Worker> workers_;
  // Kept until nobody else holds them: to unmap takes its time, which is not the lane's.
  std::vector<std::shared_ptr<const void>> retired_;
  Counters counters_;

  std::atomic<std::uint64_t> changes_{0};

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Arena> arenas_;  // guarded, as the next one
  std::map<JobAtLane, Results> results_;
};

/// The worker's side; belongs to one thread.
class RegionClient {
 public:
  /// `path` as the daemon's.
  explicit RegionClient(std::string path) : path_(std::move(path)) {}

  /// Shares an arena, which must outlive this object, with the daemon, now and whenever it is back.
  void share(const OwnRegion& arena);
  /// The arena is about to go: the daemon unmaps it once no session reads it.
  void forget(const OwnRegion& arena);
  /// The job is over: its region is unmapped here once no session holds it, and the daemon gives
  /// this one none any more.
  void forget_results(std::uint32_t job);  ///< at all lanes
  /// Asks for the region for the next session of a job, which may need so many bytes (0: as many as
  /// the daemon gives), unless an answer is awaited already. A former answer stands until this one
  /// comes.
  void ask_for_results(JobAtLane job, std::uint64_t bytes = 0);

  /// Connects, sends and receives what is due.
  void poll();

  bool is_connected() const { return socket_.has_value(); }
  /// Whether the daemon that is connected now has mapped an arena, or all.
  bool is_mapped(std::uint64_t id) const;
  bool is_shared() const;
  /// Whether it has answered for every arena.
  bool is_settled() const;
  /// What the daemon answered; null until then.
  std::shared_ptr<const PeerRegion> results(JobAtLane job) const;
  /// Why blocks cannot be shared with this daemon, as far as it is known; empty: nothing is wrong.
  const std::string& problem() const { return problem_; }

 private:
  struct Arena {
    const OwnRegion* region;
    bool sent = false;
    bool mapped = false;
    bool refused = false;
  };
  struct Asked {
    bool sent = false;
    bool answered = false;
    std::uint16_t question = 0;  ///< its number: an answer to an earlier one does not count
    std::uint64_t bytes = 0;
    std::shared_ptr<const PeerRegion> region = {};
  };

  bool send_due();
  bool take(UnixSocket::Received& received, std::span<const std::byte> bytes);
  Asked* asked(JobAtLane job, std::uint16_t question);
  void disconnect(const std::string& why);

  const std::string path_;
  std::optional<UnixSocket> socket_;
  std::vector<Arena> arenas_;
  std::map<JobAtLane, Asked> asked_;
  std::uint16_t questions_ = 0;
  std::string problem_;
};

}  // namespace sluice::memory
