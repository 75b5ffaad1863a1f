#include "aggregator/daemon/control.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/epoll.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/config/job_name.hpp"
#include "common/log/fields.hpp"

namespace sluice::aggregator {
namespace {

using memory::UnixSocket;

constexpr std::size_t kMaxClients = 16;
constexpr std::size_t kMostTakenAtOnce = 64;
constexpr std::size_t kMaxRequestBytes = 256;
constexpr std::size_t kMessageBytes = 32 * 1024;  // for an answer
constexpr std::size_t kShownBytes = 64;           // for a request that is not a command
constexpr auto kClientTimeLimit = std::chrono::seconds(5);

constexpr std::string_view kCommands =
    "status, kick JOB, limit max-jobs JOBS, limit JOB STREAMS, drain, resume, "
    "capture FRAMES SECONDS BYTES or capture stop";

/// A command's first word, and how the log names such commands. Each has a rate limit of its own,
/// so that many of one do not hide others.
struct Kind {
  std::string_view command;
  std::string_view cause;
};
constexpr std::array<Kind, 5> kKinds{{{"kick", "commands to kick"},
                                      {"limit", "commands to limit"},
                                      {"capture", "commands to capture"},
                                      {"drain", "commands to drain"},
                                      {"resume", "commands to resume"}}};

const Kind* kind_of(std::string_view command) {
  return std::ranges::find(kKinds, command, &Kind::command);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end != 0) words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

/// The beginning of a request, in the form in which an answer quotes it.
std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c >= 0x7f; }, '?');
  return "'" + shown + "'";
}

template <class Number>
Number number_of(std::string_view what, std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return number;
  throw Error(ErrorCode::kInvalidArgument, std::string(what) + " " + quoted(text) + ": 0.." +
                                               std::to_string(std::numeric_limits<Number>::max()) +
                                               " expected");
}

std::uint32_t job_of(std::string_view text) {
  if (const auto job = config::job_id_of(text)) return *job;
  throw Error(ErrorCode::kInvalidArgument,
              "job " + quoted(text) + ": " + config::kJobForms + " expected");
}

std::string object_of(const char* name, const std::string& text) {
  return nlohmann::json{{name, text}}.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Control::Control(const std::string& path, bool for_group, ControlActions actions,
                 std::shared_ptr<LimitedLog> log)
    : path_(path),
      actions_(std::move(actions)),
      log_(std::move(log)),
      socket_(UnixSocket::listen(path, for_group ? 0660 : 0600)),
      arrivals_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!arrivals_) throw Error(ErrorCode::kUnavailable, "no descriptor for commands (ulimit -n)");
  epoll_event event{.events = EPOLLIN, .data = {}};
  epoll_ctl(arrivals_.get(), EPOLL_CTL_ADD, socket_.descriptor(), &event);
}

Control::~Control() {
  unlink(path_.c_str());
}

void Control::poll(Time now) {
  std::erase_if(clients_, [&](Client& client) {
    return !serve(client) || now - client.since > kClientTimeLimit;
  });
  take_connections(now);
}

/// A client that has sent its request is answered before a new client is accepted.
void Control::take_connections(Time now) {
  for (std::size_t taken = 0; taken < kMostTakenAtOnce; ++taken) {
    auto peer = socket_.accept();
    if (!peer) return;
    if (clients_.size() == kMaxClients) evict_one();
    epoll_event event{.events = EPOLLIN, .data = {}};
    epoll_ctl(arrivals_.get(), EPOLL_CTL_ADD, peer->descriptor(), &event);
    const uid_t user = peer->peer_user();
    clients_.push_back({.socket = std::move(*peer), .user = user, .since = now});
    if (!serve(clients_.back())) clients_.pop_back();
  }
}

/// Closes the oldest connection of the user that has most: so no user keeps out another one.
void Control::evict_one() {
  std::map<uid_t, std::size_t> places;
  for (const Client& client : clients_) ++places[client.user];
  const auto most = std::ranges::max_element(places, {}, [](const auto& of) { return of.second; });
  clients_.erase(std::ranges::find(clients_, most->first, &Client::user));
}

/// Returns false if the connection has ended.
bool Control::serve(Client& client) {
  if (!client.answered) {
    std::array<char, kMaxRequestBytes> request;
    auto received = client.socket.receive(std::as_writable_bytes(std::span(request)));
    if (received.io != UnixSocket::Io::kDone) return received.io == UnixSocket::Io::kNothing;
    epoll_ctl(arrivals_.get(), EPOLL_CTL_DEL, client.socket.descriptor(), nullptr);
    client.answered = true;
    client.answer =
        received.bytes > request.size()
            ? object_of("error", "a request has at most " + std::to_string(request.size()) +
                                     " bytes, not " + std::to_string(received.bytes))
            : answer(client, {request.data(), received.bytes}, std::move(received.descriptor));
  }
  std::string_view left = client.answer;
  auto io = UnixSocket::Io::kDone;
  while (!left.empty() && io == UnixSocket::Io::kDone) {
    const std::string_view part = left.substr(0, kMessageBytes);
    io = client.socket.send(std::as_bytes(std::span(part)), -1);
    if (io == UnixSocket::Io::kDone) left.remove_prefix(part.size());
  }
  if (left.empty() || io == UnixSocket::Io::kClosed) return false;
  client.answer = left;
  return true;
}

std::string Control::answer(const Client& client, std::string_view request,
                            memory::Descriptor file) {
  try {
    if (words_of(request) == std::vector<std::string_view>{"status"}) return actions_.status();
    const std::string done = carry_out(request, std::move(file));
    const auto [command, cause] = *kind_of(words_of(request).front());
    const LogContext context({{"event", "command"},
                              {"command", std::string(command)},
                              {"user", std::uint64_t{client.user}},
                              {"client_process", std::uint64_t(client.socket.peer_process())}});
    log_->log(cause, spdlog::level::info, "user {} (process {}): {}", client.user,
              client.socket.peer_process(), done);
    return object_of("done", done);
  } catch (const Error& error) {
    return object_of("error", error.what());
  }
}

std::string Control::carry_out(std::string_view request, memory::Descriptor file) {
  const auto words = words_of(request);
  const auto is = [&](std::string_view name, std::size_t arguments) {
    return words.size() == 1 + arguments && words[0] == name;
  };
  if (is("kick", 1)) return actions_.kick(job_of(words[1]));
  if (is("limit", 2) && words[1] == "max-jobs")
    return actions_.limit_jobs(number_of<std::uint64_t>("max-jobs", words[2]));
  if (is("limit", 2))
    return actions_.limit_streams(job_of(words[1]), number_of<std::uint64_t>("streams", words[2]));
  if (is("capture", 3)) {
    if (!file) throw Error(ErrorCode::kInvalidArgument, "no file came with `capture`");
    return actions_.capture(std::move(file), number_of<std::uint64_t>("frames", words[1]),
                            number_of<std::uint32_t>("seconds", words[2]),
                            number_of<std::uint32_t>("bytes", words[3]));
  }
  if (is("capture", 1) && words[1] == "stop") return actions_.stop_capture();
  if (is("drain", 0)) return actions_.drain(true);
  if (is("resume", 0)) return actions_.drain(false);
  throw Error(ErrorCode::kInvalidArgument,
              quoted(request) + " is no command: " + std::string(kCommands) + " expected");
}

}  // namespace sluice::aggregator
