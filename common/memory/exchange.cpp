#include "common/memory/exchange.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include <sys/epoll.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"

namespace sluice::memory {
namespace {

enum class Kind : std::uint16_t {
  kArena = 1,    // worker: map this descriptor
  kMapped = 2,   // daemon: so it is
  kAsk = 3,      // worker: a region for the sums of a job's next session
  kResults = 4,  // daemon: this descriptor
  kRefused = 5,  // daemon: either, and why
  kForget = 6,   // worker: this arena is gone
  kDone = 7,     // worker: no session of this job is to come
};

constexpr std::uint32_t kMagic = 0x52'4c'53'04;  // with the version of these messages

/// Every message. Both ends are processes of one machine, so integers are as they are there.
struct Message {
  std::uint32_t magic = kMagic;
  Kind kind{};
  std::uint16_t question = 0;  ///< kAsk; its number comes back with kResults or kRefused
  std::uint64_t id = 0;        ///< of the region; kAsk: its bytes, 0: as many as may be
  std::uint32_t job = 0;       ///< kAsk, kResults, kDone; kRefused of a region for sums
  std::uint16_t lane = 0;      ///< the same
  std::array<char, 106> reason{};

  JobAtLane job_at_lane() const { return {job, lane}; }
};
static_assert(sizeof(Message) == 128);

constexpr int kConnectionsAtOnce = 64;  // the daemon has more to do
constexpr int kRequestsAtOnce = 16;     // of one worker: others have their turn

std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

Message reply(Kind kind, std::uint64_t id, JobAtLane job = {}, std::uint16_t question = 0,
              const std::string& reason = {}) {
  Message message{.kind = kind, .question = question, .id = id, .job = job.job, .lane = job.lane};
  reason.copy(message.reason.data(), message.reason.size() - 1);
  return message;
}

std::optional<Message> parse(std::span<const std::byte> bytes) {
  Message message;
  if (bytes.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.magic != kMagic) return std::nullopt;
  message.reason.back() = '\0';
  return message;
}

}  // namespace

// ------------------------------------------------------------------------------ the daemon's side
RegionServer::RegionServer(const std::string& path, const RegionServerOptions& options,
                           RegionServerEvents events)
    : path_(path),
      options_(options),
      events_(std::move(events)),
      socket_(UnixSocket::listen(path)),
      arrivals_(epoll_create1(EPOLL_CLOEXEC)) {
  watch(socket_);
}

RegionServer::~RegionServer() {
  unlink(path_.c_str());
}

/// Until it is closed. What cannot be watched is polled all the same.
void RegionServer::watch(const UnixSocket& socket) const {
  epoll_event event{.events = EPOLLIN, .data = {}};
  epoll_ctl(arrivals_.get(), EPOLL_CTL_ADD, socket.descriptor(), &event);
}

void RegionServer::poll() {
  for (int i = 0; i < kConnectionsAtOnce; ++i) {
    auto socket = socket_.accept();
    if (!socket) break;
    const std::string why = refusal_of(*socket);
    if (why.empty()) {
      watch(*socket);
      workers_.push_back({.socket = std::move(*socket)});
      continue;
    }
    ++counters_.workers_refused;
    events_.refused(why);
  }
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    const auto next = std::next(worker);
    if (has_lost_memory(*worker) || !serve(*worker)) {
      drop(*worker);
      workers_.erase(worker);
    }
    worker = next;
  }
  unmap_unused();
}

/// Of a connection; empty: it is taken.
std::string RegionServer::refusal_of(const UnixSocket& socket) const {
  if (!socket.peer_is_trusted()) return "its process is another user's";
  if (workers_.size() >= options_.workers_max) return "too many workers share memory";
  const pid_t process = socket.peer_process();
  const auto same = std::count_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.socket.peer_process() == process;
  });
  if (static_cast<std::size_t>(same) < options_.of_process_max) return "";
  return "its process " + std::to_string(process) + " has " + std::to_string(same) +
         " connections already";
}

bool RegionServer::has_lost_memory(const Worker& worker) {
  const bool lost = std::any_of(worker.arenas.begin(), worker.arenas.end(), [](const auto& arena) {
    return arena->lost().load(std::memory_order_relaxed);
  });
  if (!lost) return false;
  ++counters_.workers_lost;
  events_.lost(worker.socket.peer_process());
  return true;
}

/// False if the worker is gone, or is no worker of this version.
bool RegionServer::serve(Worker& worker) {
  for (int i = 0; i < kRequestsAtOnce; ++i) {
    std::array<std::byte, sizeof(Message) + 1> buffer;
    auto received = worker.socket.receive(buffer);
    if (received.io == UnixSocket::Io::kNothing) return true;
    if (received.io == UnixSocket::Io::kClosed) return false;
    const auto message = parse(std::span(buffer).first(std::min(received.bytes, buffer.size())));
    if (!message) return false;
    const auto take = [&] {
      switch (message->kind) {
        case Kind::kArena:
          return share(worker, message->id, received);
        case Kind::kForget:
          return forget(worker, message->id);
        case Kind::kAsk:
          return message->lane < options_.lanes &&
                 give_results(worker, message->job_at_lane(), message->id, message->question);
        case Kind::kDone:
          return forget_results(worker, message->job_at_lane());
        default:
          return false;
      }
    };
    if (!take()) return false;
  }
  return true;
}

bool RegionServer::share(Worker& worker, std::uint64_t id, UnixSocket::Received& received) {
  if (received.lost)
    return refuse(worker, id, "the daemon may open no more descriptors (ulimit -n)");
  if (worker.arenas.size() >= options_.arenas_max)
    return refuse(worker, id,
                  "its worker shares " + std::to_string(options_.arenas_max) +
                      " regions already, as many as the daemon maps");
  const std::size_t left = options_.arena_bytes_max - worker.arena_bytes;
  std::shared_ptr<const PeerRegion> region;
  try {
    const std::size_t asked = bytes_of_region(received.descriptor);
    if (asked > left)
      return refuse(worker, id,
                    std::to_string(asked) + " bytes beside " + std::to_string(worker.arena_bytes) +
                        " that are mapped; the daemon's arena-memory-mib allows " +
                        std::to_string(options_.arena_bytes_max));
    region = std::make_shared<const PeerRegion>(id, std::move(received.descriptor), left);
  } catch (const Error& error) {
    return refuse(worker, id, error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    if (id == 0 || !arenas_.emplace(id, Arena{region, &worker}).second) region.reset();
  }
  if (!region) return refuse(worker, id, "a region with this id is mapped already");
  worker.arena_bytes += region->bytes().size();
  worker.arenas.push_back(std::move(region));
  ++counters_.mapped;
  return worker.socket.send(bytes_of(reply(Kind::kMapped, id)), -1) == UnixSocket::Io::kDone;
}

/// The worker's arena is gone.
bool RegionServer::forget(Worker& worker, std::uint64_t id) {
  const auto found = std::find_if(worker.arenas.begin(), worker.arenas.end(),
                                  [&](const auto& arena) { return arena->id() == id; });
  if (found == worker.arenas.end()) return true;  // it was refused
  worker.arena_bytes -= (*found)->bytes().size();
  const std::lock_guard lock(mutex_);
  arenas_.erase(id);
  retired_.push_back(std::move(*found));
  worker.arenas.erase(found);
  changes_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

/// All ranks of a job get the same region, until a session has taken it, or one asks for a longer
/// one: then the others, too, when they ask again. To take its pages takes long, so it has no more
/// than are asked for.
bool RegionServer::give_results(Worker& worker, JobAtLane job, std::uint64_t asked,
                                std::uint16_t question) {
  const std::size_t most = options_.results_bytes;
  const std::size_t bytes = asked == 0 ? most : std::min<std::uint64_t>(asked, most);
  std::shared_ptr<OwnRegion> region = results_asked_by(worker, job, bytes);
  if (!region) {
    if (!may_ask_for_more(worker, job.lane))
      return refuse_results(worker, job, question, "too many jobs wait for their ranks");
    try {
      region = std::make_shared<OwnRegion>("sluice-results", bytes, OwnRegion::Writers::kThisOnly);
    } catch (const Error& error) {
      return refuse_results(worker, job, question, error.what());
    }
    const std::lock_guard lock(mutex_);
    auto& waiting = results_[job];
    if (waiting.region) retired_.push_back(std::move(waiting.region));
    waiting.region = region;
    waiting.asked_by.push_back(&worker);
  }
  return worker.socket.send(bytes_of(reply(Kind::kResults, region->id(), job, question)),
                            region->descriptor().get()) == UnixSocket::Io::kDone;
}

/// Else a worker that has been in many jobs could not ask for another one's.
bool RegionServer::forget_results(const Worker& worker, JobAtLane job) {
  const std::lock_guard lock(mutex_);
  if (const auto found = results_.find(job); found != results_.end()) withdraw(worker, found);
  return true;
}

/// With the lock: the worker does not wait for this region any more. Returns the next entry.
std::map<JobAtLane, RegionServer::Results>::iterator RegionServer::withdraw(
    const Worker& worker, std::map<JobAtLane, Results>::iterator entry) {
  Results& results = entry->second;
  std::erase(results.asked_by, &worker);
  if (!results.asked_by.empty()) return std::next(entry);
  retired_.push_back(std::move(results.region));
  return results_.erase(entry);
}

/// The region that waits for the job's session, if there is one and it is long enough; the worker
/// counts as one that has it. In one step: a session that takes it meanwhile takes it for good.
std::shared_ptr<OwnRegion> RegionServer::results_asked_by(Worker& worker, JobAtLane job,
                                                          std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = results_.find(job);
  if (found == results_.end() || found->second.region->bytes().size() < bytes) return nullptr;
  auto& asked_by = found->second.asked_by;
  if (std::find(asked_by.begin(), asked_by.end(), &worker) == asked_by.end())
    asked_by.push_back(&worker);
  return found->second.region;
}

/// At each lane: jobs that wait at one keep none out at another.
bool RegionServer::may_ask_for_more(const Worker& worker, std::uint16_t lane) const {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0, its_own = 0;
  for (const auto& [job, results] : results_) {
    if (job.lane != lane) continue;
    ++all;
    its_own += results.asked_by.front() == &worker;
  }
  return all < options_.results_max && its_own < limits::kMaxWaitingResultsOfWorker;
}

bool RegionServer::refuse(Worker& worker, std::uint64_t id, const std::string& why) {
  ++counters_.refused;
  events_.refused(why);
  return worker.socket.send(bytes_of(reply(Kind::kRefused, id, {}, 0, why)), -1) ==
         UnixSocket::Io::kDone;
}

bool RegionServer::refuse_results(Worker& worker, JobAtLane job, std::uint16_t question,
                                  const std::string& why) {
  ++counters_.refused;
  events_.refused(why);
  return worker.socket.send(bytes_of(reply(Kind::kRefused, 0, job, question, why)), -1) ==
         UnixSocket::Io::kDone;
}

/// What it shared is not found any more; sessions that read it go on until they end.
void RegionServer::drop(Worker& worker) {
  const std::lock_guard lock(mutex_);
  for (auto& arena : worker.arenas) {
    arenas_.erase(arena->id());
    retired_.push_back(std::move(arena));
  }
  if (!worker.arenas.empty()) changes_.fetch_add(1, std::memory_order_relaxed);
  for (auto entry = results_.begin(); entry != results_.end();) entry = withdraw(worker, entry);
}

/// Without the lock: to unmap takes its time, and the lane may want the lock.
void RegionServer::unmap_unused() {
  std::vector<std::shared_ptr<const void>> unused;
  const std::lock_guard lock(mutex_);
  const auto first = std::partition(retired_.begin(), retired_.end(),
                                    [](const auto& region) { return region.use_count() > 1; });
  unused.assign(std::make_move_iterator(first), std::make_move_iterator(retired_.end()));
  retired_.erase(first, retired_.end());
}

std::shared_ptr<const PeerRegion> RegionServer::arena(std::uint64_t id,
                                                      std::uint64_t same_worker_as) const {
  const std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id);
  if (found == arenas_.end() || found->second.region->lost()) return nullptr;
  if (same_worker_as != 0) {
    const auto other = arenas_.find(same_worker_as);
    if (other == arenas_.end() || other->second.owner != found->second.owner) return nullptr;
  }
  return found->second.region;
}

std::size_t RegionServer::results_bytes(JobAtLane job, std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = results_.find(job);
  return found == results_.end() || found->second.region->id() != id
             ? 0
             : found->second.region->bytes().size();
}

std::shared_ptr<OwnRegion> RegionServer::take_results(JobAtLane job, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = results_.find(job);
  if (found == results_.end() || found->second.region->id() != id) return nullptr;
  std::shared_ptr<OwnRegion> region = std::move(found->second.region);
  results_.erase(found);
  retired_.push_back(region);
  return region;
}

// ------------------------------------------------------------------------------ the worker's side
void RegionClient::share(const OwnRegion& arena) {
  arenas_.push_back({&arena});
}

void RegionClient::forget(const OwnRegion& arena) {
  std::erase_if(arenas_, [&](const Arena& each) { return each.region == &arena; });
  const auto gone = reply(Kind::kForget, arena.id());
  if (socket_ && socket_->send(bytes_of(gone), -1) != UnixSocket::Io::kDone)
    disconnect("the daemon at " + path_ + " does not read");
}

void RegionClient::forget_results(std::uint32_t job) {
  const auto first = asked_.lower_bound({job, 0});
  auto last = first;
  for (; last != asked_.end() && last->first.job == job; ++last) {
    const auto done = reply(Kind::kDone, 0, last->first);
    if (socket_ && socket_->send(bytes_of(done), -1) != UnixSocket::Io::kDone)
      disconnect("the daemon at " + path_ + " does not read");
  }
  asked_.erase(first, last);
}

void RegionClient::ask_for_results(JobAtLane job, std::uint64_t bytes) {
  const auto [found, is_new] = asked_.try_emplace(job);
  if (!is_new && !found->second.answered) return;
  found->second.sent = found->second.answered = false;
  found->second.question = ++questions_;
  found->second.bytes = bytes;
  if (socket_) problem_.clear();  // it was another job's, or another time's
}

void RegionClient::poll() {
  if (!socket_) {
    socket_ = UnixSocket::connect(path_);
    if (!socket_) {
      problem_ = "the daemon shares no memory at " + path_;
      return;
    }
    if (!socket_->peer_is_trusted())
      return disconnect("the daemon at " + path_ + " is another user's");
    problem_.clear();
  }
  if (!send_due())
    return disconnect("the daemon at " + path_ + " cannot be sent memory: " + std::strerror(errno));
  for (;;) {
    std::array<std::byte, sizeof(Message)> buffer;
    auto received = socket_->receive(buffer);
    if (received.io == UnixSocket::Io::kNothing) return;
    if (received.io == UnixSocket::Io::kClosed ||
        !take(received, std::span(buffer).first(std::min(received.bytes, buffer.size()))))
      return disconnect("the daemon at " + path_ + " went away");
  }
}

bool RegionClient::send_due() {
  const auto send = [&](const Message& message, int descriptor, bool& sent) {
    const auto io = socket_->send(bytes_of(message), descriptor);
    sent = io == UnixSocket::Io::kDone;
    return io;
  };
  for (Arena& arena : arenas_) {
    if (arena.sent) continue;
    const OwnRegion& region = *arena.region;
    const auto io = send(reply(Kind::kArena, region.id()), region.descriptor().get(), arena.sent);
    if (io != UnixSocket::Io::kDone) return io == UnixSocket::Io::kNothing;
  }
  for (auto& [job, asked] : asked_) {
    if (asked.sent) continue;
    const auto io = send(reply(Kind::kAsk, asked.bytes, job, asked.question), -1, asked.sent);
    if (io != UnixSocket::Io::kDone) return io == UnixSocket::Io::kNothing;
  }
  return true;
}

/// False if the daemon is not one of this version.
bool RegionClient::take(UnixSocket::Received& received, std::span<const std::byte> bytes) {
  const auto message = parse(bytes);
  if (!message) return false;
  switch (message->kind) {
    case Kind::kMapped:
      for (Arena& arena : arenas_) arena.mapped |= arena.region->id() == message->id;
      return true;
    case Kind::kResults: {
      Asked* const answers = asked(message->job_at_lane(), message->question);
      try {
        auto region = std::make_shared<const PeerRegion>(
            message->id, std::move(received.descriptor), limits::kMaxRegionBytes);
        if (answers != nullptr) answers->region = std::move(region);
      } catch (const Error& error) {
        problem_ = error.what();
      }
      return true;
    }
    case Kind::kRefused:
      asked(message->job_at_lane(), message->question);
      for (Arena& arena : arenas_) arena.refused |= arena.region->id() == message->id;
      problem_ = "the daemon refuses: " + std::string(message->reason.data());
      return true;
    default:
      return false;
  }
}

/// What is answered now; null: nobody waits for that any more.
RegionClient::Asked* RegionClient::asked(JobAtLane job, std::uint16_t question) {
  const auto found = asked_.find(job);
  if (found == asked_.end() || found->second.question != question) return nullptr;
  found->second.answered = true;
  return &found->second;
}

void RegionClient::disconnect(const std::string& why) {
  socket_.reset();
  problem_ = why;
  for (Arena& arena : arenas_) arena.sent = arena.mapped = arena.refused = false;
  for (auto& [job, asked] : asked_) asked = {.question = ++questions_, .bytes = asked.bytes};
}

bool RegionClient::is_mapped(std::uint64_t id) const {
  return socket_ && std::any_of(arenas_.begin(), arenas_.end(), [&](const Arena& arena) {
           return arena.mapped && arena.region->id() == id;
         });
}

bool RegionClient::is_shared() const {
  return socket_ && std::all_of(arenas_.begin(), arenas_.end(),
                                [](const Arena& arena) { return arena.mapped; });
}

bool RegionClient::is_settled() const {
  return socket_ && std::all_of(arenas_.begin(), arenas_.end(),
                                [](const Arena& arena) { return arena.mapped || arena.refused; });
}

std::shared_ptr<const PeerRegion> RegionClient::results(JobAtLane job) const {
  const auto found = asked_.find(job);
  return found == asked_.end() ? nullptr : found->second.region;
}

}  // namespace sluice::memory
