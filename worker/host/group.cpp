#include "worker/host/group.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/random_id.hpp"
#include "worker/host/group_messages.hpp"

namespace sluice::worker::host {
namespace {

/// How often a rank checks whether a lower one serves its socket.
constexpr Duration kConnectPeriod = std::chrono::milliseconds(2);
/// A socket file that nobody serves is removed at this age. A younger one may belong to a rank that
/// is about to serve it.
constexpr std::chrono::seconds kStaleAfter{60};

// Limits on what other processes can make this one use.
constexpr unsigned kMessagesMost = 256;  // at once
constexpr std::size_t kRegionsMost = 4096;
constexpr std::size_t kUnidentifiedMost = 512;

/// What a descriptor in an event is for.
enum class Of : std::uint32_t { kServed, kUnidentified, kSocket, kLife };

std::uint64_t event_data(Of of, std::size_t index = 0) {
  return std::uint64_t{static_cast<std::uint32_t>(of)} << 32 | index;
}

memory::Descriptor make_epoll() {
  memory::Descriptor made(epoll_create1(EPOLL_CLOEXEC));
  if (!made)
    throw Error(ErrorCode::kUnavailable,
                std::string("a descriptor for events: ") + std::strerror(errno));
  return made;
}

}  // namespace

std::string sockets_directory() {
  const std::string path = "/dev/shm/sluice-" + std::to_string(geteuid());
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUnavailable,
                "'" + path + "', where the ranks of this host find each other: " + why);
  };
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) refuse(std::strerror(errno));
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) refuse(std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) refuse("it is no directory; remove it");
  if (found.st_uid != geteuid())
    refuse("it belongs to user " + std::to_string(found.st_uid) + "; " + std::to_string(geteuid()) +
           " expected");
  if ((found.st_mode & 077) != 0)
    refuse("others than its user may enter it; mode 0700 expected (chmod 700)");
  return path;
}

namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& message) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&message, 1));
}

/// Receives a message. Where a peer has closed its end before it read everything that we sent, its
/// kernel resets the connection, and the first read returns that error before the data.
memory::UnixSocket::Received take_next(const memory::UnixSocket& socket,
                                       std::span<std::byte> into) {
  auto received = socket.receive(into);
  if (received.io == memory::UnixSocket::Io::kClosed) received = socket.receive(into);
  return received;
}

bool is_sent(const memory::UnixSocket& socket, std::span<const std::byte> message,
             int descriptor = -1) {
  return socket.send(message, descriptor) == memory::UnixSocket::Io::kDone;
}

}  // namespace

// ---------------------------------------------------------------------------------- it forms
Group::Group(GroupConfig config)
    : config_(std::move(config)),
      events_(make_epoll()),
      published_("sluice-published", MappedBoard::published_bytes(config_.sizes),
                 memory::OwnRegion::Writers::kThisOnly),
      slots_("sluice-host-slots", config_.sizes.slots_bytes(),
             memory::OwnRegion::Writers::kTrusted),
      nonce_(random_id()),
      peers_(local_ranks()),
      probed_(local_ranks(), nonce_) {
  arena_changes_ = arena_.changes();
  if (local_ranks() == 1) {
    become_formed();
  } else {
    sweep();
    serve();
  }
}

Group::~Group() {
  close();
}

void Group::close() {
  if (served_) unlink(path_of(config_.self).c_str());
  served_.reset();
  unidentified_.clear();
  for (Peer& peer : peers_) {
    peer.socket.reset();
    peer.life = {};
  }
  permit_.reset();
}

std::string Group::path_of(LocalRank rank) const {
  return config_.directory + "/" + config_.host + "." + std::to_string(config_.job) + "." +
         std::to_string(config_.ranks[rank].value);
}

void Group::serve() {
  const std::string path = path_of(config_.self);
  if (memory::UnixSocket::connect(path))
    return fail(AbortInfo{.reason = wire::AbortReason::kDuplicateRank,
                          .rank_a = config_.ranks[config_.self]});
  served_ = memory::UnixSocket::listen(path, 0600);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = event_data(Of::kServed)}};
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, served_->descriptor(), &event);
}

/// Removes the sockets of ranks that were killed.
void Group::sweep() const {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(config_.directory, ignored)) {
    if (!entry.is_socket(ignored) || now - entry.last_write_time(ignored) < kStaleAfter) continue;
    errno = 0;
    if (!memory::UnixSocket::connect(entry.path()) && errno == ECONNREFUSED)
      unlink(entry.path().c_str());
  }
}

RankSet Group::missing() const {
  RankSet ranks;
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    if (rank != config_.self && is_missing(peers_[rank])) ranks.insert(config_.ranks[rank]);
  return ranks;
}

/// Whether the rank has not come yet, or has not answered the probe.
bool Group::is_missing(const Peer& peer) const {
  return state_ == State::kProbing ? peer.socket && !peer.reached : !peer.is_in();
}

bool Group::poll(Time now) {
  if (state_ == State::kFailed) return false;
  if (state_ == State::kForming)
    for (LocalRank lower = 0; lower < config_.self; ++lower)
      if (!peers_[lower].socket && !peers_[lower].has_formed && now >= peers_[lower].connect_due)
        connect(lower, now);
  std::array<epoll_event, 64> events{};
  const int count = epoll_wait(events_.get(), events.data(), events.size(), 0);
  bool is_to_identify = false;
  for (int i = 0; i < count && state_ != State::kFailed; ++i) {
    const std::uint64_t data = events[static_cast<std::size_t>(i)].data.u64;
    const auto rank = static_cast<LocalRank>(data);
    switch (static_cast<Of>(data >> 32)) {
      case Of::kServed:
        accept();
        break;
      case Of::kUnidentified:
        is_to_identify = true;
        break;
      case Of::kSocket:
        if (peers_[rank].socket && !receive(rank)) drop(rank);
        break;
      case Of::kLife:
        if (peers_[rank].socket) drop(rank);
        break;
    }
  }
  if (is_to_identify)
    std::erase_if(unidentified_, [&](memory::UnixSocket& socket) { return !identify(socket); });
  if (state_ == State::kForming && missing().empty()) begin_probing();
  if (state_ == State::kProbing && missing().empty()) become_formed();
  return count > 0;
}

void Group::begin_probing() {
  state_ = State::kProbing;
  if (config_.uses_processes) {
    std::vector<pid_t> peer_processes;
    for (const Peer& peer : peers_)
      if (peer.process > 0 && peer.process != getpid()) peer_processes.push_back(peer.process);
    permit_.emplace(std::move(peer_processes));
  }
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    if (peers_[rank].socket)
      is_sent(*peers_[rank].socket,
              bytes_of(Message{.kind = Kind::kFormed,
                               .id = reinterpret_cast<std::uintptr_t>(&probed_[rank])}));
}

/// Checks whether we can access a peer's process: reads a word there that must be its nonce, and
/// writes the complement, by which the peer sees that it was its own word. Returns 0 or an errno.
int Group::probe(LocalRank rank, std::uint64_t address) const {
  if (!config_.uses_processes) return EOPNOTSUPP;
  std::uint64_t word = 0;
  const Transfer transfer{reinterpret_cast<std::byte*>(&word), address, sizeof word};
  if (const int error = process_memory(rank).read({&transfer, 1}); error != 0) return error;
  if (word != peers_[rank].nonce) return ESRCH;
  word = ~word;
  return process_memory(rank).write({&transfer, 1});
}

std::string Group::why_not_reached() const {
  if (!config_.uses_processes) return std::strerror(EOPNOTSUPP);
  for (LocalRank rank = 0; rank < local_ranks(); ++rank) {
    if (rank == config_.self) continue;
    const int error = peers_[rank].reached.value_or(ESRCH);
    const volatile std::uint64_t& word = probed_[rank];  // written by the peer
    const bool is_ours = word == ~nonce_;
    if (error != 0 || !is_ours)
      return "rank " + std::to_string(config_.ranks[rank].value) + ": " +
             std::strerror(error != 0 ? error : ESRCH);
  }
  return "";
}

ProcessMemory Group::process_memory(LocalRank rank) const {
  return {peers_[rank].process, peers_[rank].life ? peers_[rank].life.get() : -1};
}

void Group::become_formed() {
  state_ = State::kFormed;
  lowest_nonce_ = config_.self == 0 ? nonce_ : peers_[0].nonce;
}

void Group::accept() {
  while (auto socket = served_->accept()) {
    // a process of root counts as another user's, unless we are root, too
    if (socket->peer_user() != geteuid() || unidentified_.size() == kUnidentifiedMost) continue;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = event_data(Of::kUnidentified)}};
    epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket->descriptor(), &event);
    unidentified_.push_back(*std::move(socket));
  }
}

void Group::connect(LocalRank to, Time now) {
  Peer& peer = peers_[to];
  peer.connect_due = after(now, kConnectPeriod);
  auto socket = memory::UnixSocket::connect(path_of(to));
  if (!socket || socket->peer_user() != geteuid() || !say_hello(*socket)) return;
  peer.socket = std::move(socket);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = event_data(Of::kSocket, to)}};
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, peer.socket->descriptor(), &event);
}

bool Group::say_hello(const memory::UnixSocket& socket) {
  Hello hello;
  hello.job = config_.job;
  hello.rank = config_.ranks[config_.self].value;
  hello.world_size = config_.world_size;
  hello.block_elements = config_.block_elements;
  hello.payload_bytes = config_.payload_bytes;
  hello.has_secret = config_.secret ? 1 : 0;
  hello.nonce = nonce_;
  hello.sizes = config_.sizes;
  config_.build.copy(hello.build.data(), hello.build.size() - 1);
  return is_sent(socket, bytes_of(hello));
}

/// Reads which rank a connection belongs to. False if that is known now, or refused.
bool Group::identify(memory::UnixSocket& socket) {
  Hello hello;
  const auto received = take_next(socket, std::as_writable_bytes(std::span(&hello, 1)));
  if (received.io == memory::UnixSocket::Io::kNothing) return true;
  const auto forget = [&] {
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket.descriptor(), nullptr);
    return false;
  };
  if (received.io == memory::UnixSocket::Io::kClosed || received.bytes != sizeof hello ||
      hello.kind != Kind::kHello)
    return forget();
  const auto found = std::find(config_.ranks.begin(), config_.ranks.end(), Rank{hello.rank});
  const auto rank = static_cast<LocalRank>(found - config_.ranks.begin());
  // A rank that had formed and has gone may be about to join the job's next group. A rank that
  // disagrees gets the reason, too.
  if (state_ != State::kForming ||
      (rank < local_ranks() && (peers_[rank].socket || peers_[rank].has_formed)) ||
      !say_hello(socket) || !take_hello(hello, rank) || rank <= config_.self)
    return forget();
  Peer& peer = peers_[rank];
  forget();
  peer.socket = std::move(socket);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = event_data(Of::kSocket, rank)}};
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, peer.socket->descriptor(), &event);
  peer.has_said_hello = true;
  peer.nonce = hello.nonce;
  if (!introduce(peer)) drop(rank);
  return false;
}

/// Checks that it belongs to this job and agrees with us. If it should and does not, the group
/// fails.
bool Group::take_hello(const Hello& hello, LocalRank from) {
  if (hello.version != kGroupVersion ||
      std::string_view(hello.build.data(), strnlen(hello.build.data(), hello.build.size())) !=
          std::string_view(config_.build).substr(0, hello.build.size() - 1)) {
    fail(Error(
        ErrorCode::kFormationFailed,
        config_.alias.name() + ": rank " +
            std::to_string(config_.alias.of(Rank{hello.rank}).value) + " is of build " +
            std::string(hello.build.data(), strnlen(hello.build.data(), hello.build.size())) +
            " of this library, and this rank of " + config_.build + ": use one build on a host",
        hello.rank));
    return false;
  }
  if (hello.job != config_.job) return false;
  const auto agrees = [&](wire::Field field, std::uint64_t theirs, std::uint64_t ours) {
    if (theirs == ours) return true;
    fail(AbortInfo{.reason = wire::AbortReason::kJoinMismatch,
                   .field = field,
                   .rank_a = Rank{hello.rank},
                   .rank_b = config_.ranks[config_.self],
                   .value_a = theirs,
                   .value_b = ours});
    return false;
  };
  if (!agrees(wire::Field::kWorldSize, hello.world_size, config_.world_size) ||
      !agrees(wire::Field::kBlockElements, hello.block_elements, config_.block_elements) ||
      !agrees(wire::Field::kPayloadBytes, hello.payload_bytes, config_.payload_bytes))
    return false;
  if ((hello.has_secret != 0) != (config_.secret != nullptr)) {
    fail(Error(ErrorCode::kNotAuthenticated,
               config_.alias.name() + ": rank " + std::to_string(hello.rank) +
                   (config_.secret ? " has no secret, and this rank has one"
                                   : " has a secret, and this rank has none") +
                   " (SLUICE_SECRET_FILE)",
               hello.rank));
    return false;
  }
  return from < local_ranks() && from != config_.self &&
         std::memcmp(&hello.sizes, &config_.sizes, sizeof hello.sizes) == 0;
}

/// Passes on our memory to a peer that has said hello.
bool Group::introduce(Peer& peer) {
  peer.process = peer.socket->peer_process();
  Message proof{.kind = Kind::kProof};
  if (config_.secret)
    proof.proof = host_proof(*config_.secret, config_.job, config_.ranks[config_.self], peer.nonce);
  return is_sent(*peer.socket, bytes_of(proof), published_.descriptor().get()) &&
         is_sent(*peer.socket, bytes_of(Message{.kind = Kind::kSlots}), slots_.descriptor().get());
}

// -------------------------------------------------------------------------------- the sockets
/// Takes the messages of a peer. False if it has ended, or has sent what it must not.
bool Group::receive(LocalRank from) {
  Peer& peer = peers_[from];
  union {
    Hello hello;
    Message message;
  } into{.hello = {}};
  for (unsigned taken = 0; taken < kMessagesMost; ++taken) {
    auto received = take_next(*peer.socket, std::as_writable_bytes(std::span(&into, 1)));
    if (received.io == memory::UnixSocket::Io::kNothing) return true;
    if (received.io == memory::UnixSocket::Io::kClosed) return false;
    if (!peer.has_said_hello) {  // we have connected, and it answers
      if (received.bytes != sizeof into.hello || into.hello.kind != Kind::kHello ||
          into.hello.rank != config_.ranks[from].value || !take_hello(into.hello, from))
        return false;
      peer.has_said_hello = true;
      peer.nonce = into.hello.nonce;
      if (!introduce(peer)) return false;
      continue;
    }
    if (received.lost)
      problem_ = "rank " + std::to_string(config_.ranks[from].value) +
                 ": its memory could not be received: this process may open no more files "
                 "(ulimit -n)";
    if (received.bytes != sizeof into.message ||
        !take(from, into.message, std::move(received.descriptor)))
      return false;
  }
  return true;
}

bool Group::take(LocalRank from, const Message& message, memory::Descriptor descriptor) {
  Peer& peer = peers_[from];
  try {
    switch (message.kind) {
      case Kind::kProof:
        if (peer.is_proven || !descriptor) return false;
        if (config_.secret && !equal(message.proof, host_proof(*config_.secret, config_.job,
                                                               config_.ranks[from], nonce_))) {
          fail(AbortInfo{.reason = wire::AbortReason::kNotAuthenticated,
                         .rank_a = config_.ranks[from]});
          return false;
        }
        peer.published = memory::map_for_reading(descriptor, published_.bytes().size());
        if (peer.published.bytes().size() != published_.bytes().size()) return false;
        peer.is_proven = true;
        watch_life(peer);
        return true;
      case Kind::kSlots:
        if (!peer.is_proven || !peer.slots.bytes().empty() || !descriptor) return false;
        peer.slots = memory::map_for_writing(descriptor, slots_.bytes().size());
        return peer.slots.bytes().size() == slots_.bytes().size();
      case Kind::kRegion:
        return peer.is_in() && descriptor && take_region(peer, message.id, descriptor);
      case Kind::kForget:
        if (auto region = peer.regions.extract(message.id))
          retired_.push_back(std::move(region.mapped()));
        return true;
      case Kind::kFormed:
        if (!peer.is_in() || peer.has_formed) return false;
        peer.has_formed = true;
        return is_sent(
            *peer.socket,
            bytes_of(Message{.kind = Kind::kReached,
                             .id = static_cast<std::uint64_t>(probe(from, message.id))}));
      case Kind::kReached:
        if (!peer.is_in() || peer.reached) return false;
        peer.reached = static_cast<int>(message.id);
        return true;
      case Kind::kWake:
        return true;
      case Kind::kFarewell:
        if (state_ != State::kFormed) fail(message.why);
        return false;
      case Kind::kHello:
        break;
    }
  } catch (const Error& error) {  // its memory cannot be mapped
    problem_ = "rank " + std::to_string(config_.ranks[from].value) + ": " + error.what();
  }
  return false;
}

bool Group::take_region(Peer& peer, std::uint64_t id, const memory::Descriptor& descriptor) {
  if (id == 0 || id == Place::kInProcess || peer.regions.size() == kRegionsMost) return false;
  if (peer.regions.contains(id)) return true;
  peer.regions.emplace(
      id, memory::map_for_writing(descriptor, std::numeric_limits<std::size_t>::max()));
  return true;
}

/// A descriptor of the process shows its end. The socket alone does not, as the peer's children may
/// keep it open.
void Group::watch_life(Peer& peer) const {
  if (peer.process <= 0) return;  // it is in another PID namespace
  peer.life = memory::Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.process, 0)));
  if (!peer.life) return;
  epoll_event event{
      .events = EPOLLIN,
      .data = {.u64 = event_data(Of::kLife, static_cast<std::size_t>(&peer - peers_.data()))}};
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, peer.life.get(), &event);
}

/// The rank may come again, unless it or we have seen that the group has formed. Descriptors are
/// taken out of epoll before they are closed, as a child of ours may have them, too.
void Group::drop(LocalRank rank) {
  Peer& peer = peers_[rank];
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer.socket->descriptor(), nullptr);
  if (peer.life) epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer.life.get(), nullptr);
  if (state_ == State::kForming && !peer.has_formed) {
    peer = Peer{.connect_due = peer.connect_due};
  } else {
    peer.socket.reset();  // the memory stays, as a board may still read it
    peer.life = {};
    lost_.push_back(rank);
  }
}

void Group::fail(const AbortInfo& why) {
  if (state_ == State::kFailed) return;
  abort_info_ = why;
  fail(config_.alias.error_of(why));
}

/// All ranks that we know receive the reason.
void Group::fail(const Error& error) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  failure_ = error;
  if (!abort_info_) return;
  for (const Peer& peer : peers_)
    if (peer.socket && peer.has_said_hello)
      is_sent(*peer.socket, bytes_of(Message{.kind = Kind::kFarewell, .why = *abort_info_}));
}

// ---------------------------------------------------------------------------------- once formed
std::vector<RankMemory> Group::memory() {
  std::vector<RankMemory> all;
  for (LocalRank rank = 0; rank < local_ranks(); ++rank)
    all.push_back(rank == config_.self
                      ? RankMemory{published_.bytes(), slots_.bytes()}
                      : RankMemory{peers_[rank].published.bytes(), peers_[rank].slots.bytes()});
  return all;
}

/// A message that finds no room is not needed: the peer has others to read, and wakes.
void Group::wake(LocalRank rank) {
  if (peers_[rank].socket) is_sent(*peers_[rank].socket, bytes_of(Message{}));
}

std::optional<Place> Group::place_of(std::span<const std::byte> tensor) {
  if (arena_.changes() != arena_changes_) take_back_regions();
  const auto found = arena_.find(tensor);
  if (!found) return std::nullopt;
  if (!shared_.contains(found->region)) {
    for (auto& region : arena_.regions())
      if (region->id() == found->region && share(*region)) shared_.emplace(region->id(), region);
    if (!shared_.contains(found->region)) return std::nullopt;
  }
  return Place{found->region, found->offset};
}

bool Group::share(const memory::OwnRegion& region) {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return !peer.socket || is_sent(*peer.socket, bytes_of(Message{Kind::kRegion, region.id()}),
                                   region.descriptor().get());
  });
}

void Group::take_back_regions() {
  arena_changes_ = arena_.changes();
  const auto live = arena_.regions();
  std::erase_if(shared_, [&](const auto& entry) {
    const bool is_live = std::any_of(
        live.begin(), live.end(), [&](const auto& region) { return region->id() == entry.first; });
    if (is_live) return false;
    for (const Peer& peer : peers_)
      if (peer.socket) is_sent(*peer.socket, bytes_of(Message{Kind::kForget, entry.first}));
    return true;
  });
}

std::span<std::byte> Group::region(LocalRank rank, std::uint64_t id) {
  if (rank == config_.self) {
    const auto own = shared_.find(id);
    return own == shared_.end() ? std::span<std::byte>() : own->second->bytes();
  }
  Peer& peer = peers_[rank];
  if (!peer.regions.contains(id) && peer.socket && !receive(rank)) drop(rank);
  const auto found = peer.regions.find(id);
  return found == peer.regions.end() ? std::span<std::byte>() : found->second.bytes();
}

}  // namespace sluice::worker::host
