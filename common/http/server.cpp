#include "common/http/server.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <sluice/error.hpp>

namespace sluice::http {
namespace {

constexpr const char* kRequestTimeoutMs = "1000";  // to send a request, or to take an answer
constexpr const char* kQueuedConnections = "64";

// How long to wait for a thread to begin, one after the other.
constexpr std::chrono::seconds kThreadStart{1};

// The pages load nothing from elsewhere, and nobody may put them in a frame.
constexpr const char* kHeaders =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n";

void send(mg_connection* connection, const Response& response, bool with_body,
          const char* more_headers = "") {
  mg_printf(connection,
            "HTTP/1.1 %s\r\n%s%sContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Connection: close\r\n\r\n",
            response.status, kHeaders, more_headers, response.content_type.c_str(),
            response.body.size());
  if (with_body) mg_write(connection, response.body.data(), response.body.size());
}

Response plain(const char* status, std::string text) {
  return {"text/plain; charset=utf-8", std::move(text), status};
}

/// Whether a Host header is no name that somebody else may have given to this machine.
bool is_address_or_localhost(std::string_view host) {
  const std::string_view name = host.substr(0, host.rfind(':'));
  return name == "localhost" || name.find_first_not_of("0123456789.") == name.npos;
}

struct sigaction handler_of_pipe() {
  struct sigaction handler {};
  sigaction(SIGPIPE, nullptr, &handler);
  return handler;
}

/// While it lives, threads begin with SIGPIPE blocked.
class PipeBlocked {
 public:
  PipeBlocked() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  PipeBlocked(const PipeBlocked&) = delete;
  PipeBlocked& operator=(const PipeBlocked&) = delete;
  ~PipeBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// Once per process, for all servers.
void start_library() {
  static const unsigned features = mg_init_library(0);
  (void)features;
}

}  // namespace

Server::Server(const Options& options, Pages pages)
    : pages_(std::move(pages)),
      log_(options.log),
      is_local_(options.listen.starts_with("127.")),
      of_pipe_(handler_of_pipe()) {
  start_library();
  const std::string threads = std::to_string(options.threads);
  const std::array<const char*, 11> settings{"listening_ports",
                                             options.listen.c_str(),
                                             "num_threads",
                                             threads.c_str(),
                                             "request_timeout_ms",
                                             kRequestTimeoutMs,
                                             "connection_queue",
                                             kQueuedConnections,
                                             "enable_keep_alive",
                                             "no",
                                             nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &Server::answer;
  callbacks.log_message = &Server::complain;
  callbacks.init_thread = &Server::begin_thread;
  const PipeBlocked inherited;
  errno = 0;
  context_.reset(mg_start(&callbacks, this, const_cast<const char**>(settings.data())));
  if (context_ == nullptr) {
    const std::string why = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
    throw Error(ErrorCode::kUnavailable, "cannot serve HTTP at " + options.listen + why);
  }
  for (unsigned i = 0; i < options.threads + 1; ++i)
    if (!begun_.try_acquire_for(kThreadStart)) break;
  mg_server_port bound{};
  if (mg_get_server_ports(context_.get(), 1, &bound) == 1)
    port_ = static_cast<std::uint16_t>(bound.port);
}

Server::~Server() = default;

/// The library does not tell.
std::optional<int> Server::listening_descriptor() const {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    sockaddr_in at{};
    socklen_t size = sizeof listens, length = sizeof at;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &length) == 0 &&
        at.sin_family == AF_INET && ntohs(at.sin_port) == port_)
      return descriptor;
  }
  return std::nullopt;
}

void Server::Close::operator()(mg_context* context) const {
  mg_stop(context);
}

/// Answers every request itself: the library serves no files.
int Server::answer(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const auto& server = *static_cast<const Server*>(request.user_data);
  const std::string_view method = request.request_method;
  const bool is_head = method == "HEAD";
  if (method != "GET" && !is_head) {
    send(connection, plain("405 Method Not Allowed", "This server is read-only.\n"), true,
         "Allow: GET, HEAD\r\n");
    return 1;
  }
  const char* const host = mg_get_header(connection, "Host");
  if (server.is_local_ && host != nullptr && !is_address_or_localhost(host)) {
    send(connection, plain("403 Forbidden", "Ask for 127.0.0.1 or localhost.\n"), !is_head);
    return 1;
  }
  const char* const path = request.local_uri == nullptr ? "" : request.local_uri;
  const auto page = server.pages_.find(std::string_view(path));
  if (page == server.pages_.end()) {
    std::string paths;
    for (const auto& [name, make] : server.pages_) paths += name + "\n";
    send(connection, plain("404 Not Found", "No such page. There are:\n" + paths), !is_head);
    return 1;
  }
  send(connection, page->second(), !is_head);
  return 1;
}

/// Each thread of the library begins by ignoring SIGPIPE, for the whole process.
void* Server::begin_thread(const mg_context* context, int /*type*/) {
  auto& server = *static_cast<Server*>(mg_get_user_data(context));
  sigaction(SIGPIPE, &server.of_pipe_, nullptr);
  server.begun_.release();
  return nullptr;
}

int Server::complain(const mg_connection* connection, const char* message) {
  const auto& server = *static_cast<const Server*>(mg_get_user_data(mg_get_context(connection)));
  if (server.log_) server.log_(message);
  return 1;
}

}  // namespace sluice::http
