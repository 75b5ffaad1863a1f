#include "common/http/server.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/memory/thread_without_signals.hpp"

namespace sluice::http {
namespace {

using namespace std::chrono_literals;

constexpr int kWaiting = 1024;                 // connections that are not accepted yet
constexpr std::size_t kMostTakenAtOnce = 256;  // then clients are served
constexpr std::size_t kRequestBytes = 8192;
constexpr std::size_t kReadBytes = 4096;
constexpr int kMostReads = 4;
constexpr auto kTimeLimit = 10s;  // for a client to send a request and to read the answer
constexpr auto kPause = 100ms;    // when there is no descriptor for a client

// The pages load nothing from other sites, and must not be shown in a frame.
constexpr const char* kHeaders =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Connection: close\r\n";

Response plain(const char* status, std::string text) {
  return {"text/plain; charset=utf-8", std::move(text), status};
}

/// Whether a Host header is an address or localhost, and not a name that somebody else may have
/// given to this machine.
bool is_address_or_localhost(std::string_view host) {
  const std::string_view name = host.substr(0, host.rfind(':'));
  return name == "localhost" || name.find_first_not_of("0123456789.") == name.npos;
}

bool equals_without_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Takes the text up to the separator, and removes the separator, too.
std::string_view take_until(std::string_view& text, std::string_view separator) {
  const std::size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + separator.size());
  return taken;
}

/// The value of the first header with this name; empty if there is none.
std::string_view header(std::string_view headers, std::string_view name) {
  while (!headers.empty()) {
    std::string_view line = take_until(headers, "\r\n");
    if (!equals_without_case(take_until(line, ":"), name)) continue;
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    return line.substr(0, line.find_last_not_of(" \t") + 1);
  }
  return {};
}

bool fits_no_descriptor(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/// Empty if the port is taken and that is permitted.
memory::Descriptor listen_at(const std::string& ipv4, std::uint16_t port,
                             bool may_be_taken = false) {
  memory::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  const int on = 1;
  // Connections of a server that has just ended do not block the port.
  if (!socket || inet_pton(AF_INET, ipv4.c_str(), &at.sin_addr) != 1 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      listen(socket.get(), kWaiting) != 0) {
    if (may_be_taken && errno == EADDRINUSE) return {};
    throw Error(ErrorCode::kUnavailable, "cannot serve HTTP at " + ipv4 + ":" +
                                             std::to_string(port) + ": " + std::strerror(errno));
  }
  return socket;
}

std::uint16_t port_of(const memory::Descriptor& socket) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.sin_port);
}

}  // namespace

void check_address(const std::string& ipv4, std::uint16_t port) {
  listen_at(ipv4, port, true);
}

Server::Server(const Options& options, Pages pages)
    : pages_(std::move(pages)),
      clients_max_(options.clients),
      is_local_(options.ipv4.starts_with("127.")),
      listener_(listen_at(options.ipv4, options.port)),
      end_(eventfd(0, EFD_CLOEXEC)) {
  if (!end_) throw Error(ErrorCode::kUnavailable, "no descriptor to serve HTTP (ulimit -n)");
  port_ = port_of(listener_);
  thread_ = thread_without_signals([this] { run(); });
}

Server::~Server() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

void Server::run() {
  pthread_setname_np(pthread_self(), "sluice-http");
  for (;;) {
    const bool listens = Clock::now() >= listens_from_;
    std::vector<pollfd> waited{{end_.get(), POLLIN, 0},
                               {listens ? listener_.get() : -1, POLLIN, 0}};
    for (const Client& client : clients_)
      waited.push_back({client.socket.get(), short(client.answer.empty() ? POLLIN : POLLOUT), 0});
    const auto most = listens && clients_.empty() ? -1ms : kPause;
    if (poll(waited.data(), waited.size(), static_cast<int>(most.count())) < 0) {
      // The process may have had its limit of descriptors lowered.
      std::this_thread::sleep_for(kPause);
      evict_one();
      continue;
    }
    if (waited[0].revents != 0) return;
    auto event = waited.begin() + 2;
    for (auto client = clients_.begin(); client != clients_.end(); ++event) {
      const bool is_late = Clock::now() - client->since > kTimeLimit;
      const bool is_over = is_late || (event->revents != 0 && serve(*client) == Over::kYes);
      client = is_over ? clients_.erase(client) : std::next(client);
    }
    if (waited[1].revents != 0) take_clients();
  }
}

/// A client that has sent its request is answered before a new client is accepted.
void Server::take_clients() {
  for (std::size_t taken = 0; taken < kMostTakenAtOnce; ++taken) {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    memory::Descriptor socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                                      SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && fits_no_descriptor(errno)) {
      if (clients_.empty()) listens_from_ = Clock::now() + kPause;
      evict_one();
      return;
    }
    if (!socket) return;
    if (clients_.size() == clients_max_) evict_one();
    clients_.push_back(
        {.socket = std::move(socket), .ipv4 = from.sin_addr.s_addr, .since = Clock::now()});
    if (serve(clients_.back()) == Over::kYes) clients_.pop_back();
  }
}

/// Closes the oldest connection of the address that has most.
void Server::evict_one() {
  std::map<std::uint32_t, std::size_t> places;
  for (const Client& client : clients_) ++places[client.ipv4];
  const auto most = std::ranges::max_element(places, {}, [](const auto& of) { return of.second; });
  if (most != places.end()) clients_.erase(std::ranges::find(clients_, most->first, &Client::ipv4));
}

Server::Over Server::serve(Client& client) const {
  std::array<char, kReadBytes> read_now;
  for (int reads = 0; client.answer.empty(); ++reads) {
    if (reads == kMostReads) return Over::kNo;  // others have their turn
    const ssize_t count = recv(client.socket.get(), read_now.data(), read_now.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? Over::kNo : Over::kYes;
    if (count == 0) return Over::kYes;
    if (client.answered) continue;  // a close would discard what the client has not read yet
    client.request.append(read_now.data(), static_cast<std::size_t>(count));
    const std::size_t end = client.request.find("\r\n\r\n");
    if (end == client.request.npos && client.request.size() <= kRequestBytes) continue;
    client.answer = answer_to(std::string_view(client.request).substr(0, end));
    client.answered = true;
    client.request.clear();
  }
  const ssize_t sent =
      send(client.socket.get(), client.answer.data(), client.answer.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR ? Over::kNo : Over::kYes;
  client.answer.erase(0, static_cast<std::size_t>(sent));
  if (client.answer.empty()) shutdown(client.socket.get(), SHUT_WR);
  return Over::kNo;
}

/// `request` is the first line and the headers.
std::string Server::answer_to(std::string_view request) const {
  const std::string_view whole = request;
  std::string_view line = take_until(request, "\r\n");
  const std::string_view method = take_until(line, " ");
  const std::string_view target = take_until(line, " ");
  const bool is_http = line == "HTTP/1.1" || line == "HTTP/1.0";
  const Response response =
      whole.size() > kRequestBytes ? plain("431 Request Header Fields Too Large", "Too long.\n")
      : !is_http                   ? plain("400 Bad Request", "HTTP/1.1 is expected.\n")
                 : response_to(method, target.substr(0, target.find('?')), header(request, "Host"));
  std::string answer = std::string("HTTP/1.1 ") + response.status + "\r\n" + kHeaders +
                       "Content-Type: " + response.content_type +
                       "\r\nContent-Length: " + std::to_string(response.body.size()) + "\r\n";
  if (response.status[0] == '4' && method != "GET" && method != "HEAD")
    answer += "Allow: GET, HEAD\r\n";
  answer += "\r\n";
  return method == "HEAD" ? answer : answer + response.body;
}

Response Server::response_to(std::string_view method, std::string_view path,
                             std::string_view host) const {
  if (method != "GET" && method != "HEAD")
    return plain("405 Method Not Allowed", "This server is read-only.\n");
  if (is_local_ && !host.empty() && !is_address_or_localhost(host))
    return plain("403 Forbidden", "Ask for 127.0.0.1 or localhost.\n");
  const auto page = pages_.find(path);
  if (page != pages_.end()) return page->second();
  std::string paths;
  for (const auto& [name, make] : pages_) paths += name + "\n";
  return plain("404 Not Found", "No such page. There are:\n" + paths);
}

}  // namespace sluice::http
