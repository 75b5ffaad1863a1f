// A read-only HTTP server for metrics and status: GET and HEAD of a few fixed paths, on threads of
// its own (civetweb's). Whoever can reach the address can read; nothing can be changed. A client
// that never reads or never ends its request holds one of a fixed number of threads for a bounded
// time; clients beyond these threads wait in a bounded queue.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>

struct mg_context;
struct mg_connection;

namespace sluice::http {

struct Response {
  std::string content_type;
  std::string body;
  const char* status = "200 OK";
};

/// The process keeps its handler of SIGPIPE, which the server's threads do not take.
class Server {
 public:
  /// By path ("/metrics"). Called on the server's threads, several at a time.
  using Pages = std::map<std::string, std::function<Response()>, std::less<>>;
  using Log = std::function<void(std::string_view)>;

  struct Options {
    std::string listen;  ///< "127.0.0.1:9475"; port 0: any that is free. At 127.0.0.0/8 requests
                         ///< must be to an address or localhost, lest a web page of elsewhere that
                         ///< has its name lead there (DNS rebinding) can read
    unsigned threads = 32;
    Log log{};  ///< gets the library's complaints, on its threads
  };

  /// Throws Error kUnavailable naming the address if it cannot listen there.
  Server(const Options& options, Pages pages);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const { return port_; }
  /// The socket that listens; empty: not found.
  std::optional<int> listening_descriptor() const;

 private:
  static int answer(mg_connection* connection);
  static void* begin_thread(const mg_context* context, int type);
  static int complain(const mg_connection* connection, const char* message);

  struct Close {
    void operator()(mg_context* context) const;
  };

  const Pages pages_;
  const Log log_;
  const bool is_local_;
  const struct sigaction of_pipe_;      // as it was before
  std::counting_semaphore<> begun_{0};  // of the threads
  std::unique_ptr<mg_context, Close> context_;
  std::uint16_t port_ = 0;
};

}  // namespace sluice::http
