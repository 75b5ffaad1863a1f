#include "common/http/server.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <civetweb.h>

#include <sluice/error.hpp>

namespace sluice::http {
namespace {

constexpr const char* kThreads = "32";
constexpr const char* kRequestTimeoutMs = "1000";  // to send a request, or to take an answer
constexpr const char* kQueuedConnections = "64";

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

/// Once per process, for all servers.
void start_library() {
  static const unsigned features = mg_init_library(0);
  (void)features;
}

}  // namespace

Server::Server(const Options& options, Pages pages)
    : pages_(std::move(pages)), log_(options.log), is_local_(options.listen.starts_with("127.")) {
  start_library();
  const std::array<const char*, 11> settings{"listening_ports",
                                             options.listen.c_str(),
                                             "num_threads",
                                             kThreads,
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
  errno = 0;
  context_.reset(mg_start(&callbacks, this, const_cast<const char**>(settings.data())));
  if (context_ == nullptr) {
    const std::string why = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
    throw Error(ErrorCode::kUnavailable, "cannot serve HTTP at " + options.listen + why);
  }
  mg_server_port bound{};
  if (mg_get_server_ports(context_.get(), 1, &bound) == 1)
    port_ = static_cast<std::uint16_t>(bound.port);
}

Server::~Server() = default;

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

int Server::complain(const mg_connection* connection, const char* message) {
  const auto& server = *static_cast<const Server*>(mg_get_user_data(mg_get_context(connection)));
  if (server.log_) server.log_(message);
  return 1;
}

}  // namespace sluice::http
