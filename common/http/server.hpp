// A read-only HTTP server for metrics and status: GET and HEAD of a few fixed paths, on a thread of
// its own. Every host that can reach the address can read; nothing can be changed.
//
// The thread waits for no client: a client that sends slowly, never reads or never ends its request
// only costs a descriptor. The number of connections is limited. If a client comes when there is no
// room, it replaces the oldest connection of the address that has most. So a host can only keep out
// itself, and a client that sends its request at once is answered at once. The same happens if the
// process has no descriptor left.
//
// No library that we know does that: civetweb has a thread per client; and it spins, as
// libmicrohttpd does, when the process has no descriptor left.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "common/memory/descriptor.hpp"

namespace sluice::http {

struct Response {
  std::string content_type;
  std::string body;
  const char* status = "200 OK";
};

/// Throws the Error kUnavailable that a Server would throw if it cannot listen there; except if
/// another process listens there, which the caller may be about to replace.
void check_address(const std::string& ipv4, std::uint16_t port);

class Server {
 public:
  /// By path ("/metrics"). Called on the server's thread.
  using Pages = std::map<std::string, std::function<Response()>, std::less<>>;

  struct Options {
    /// "127.0.0.1". At 127.0.0.0/8, the host of a request must be an address or localhost. So a web
    /// page of another site, whose name leads there (DNS rebinding), cannot read.
    std::string ipv4;
    std::uint16_t port = 0;  ///< 0: any free port
    std::size_t clients = 64;
  };

  /// Throws Error kUnavailable, naming the address, if it cannot listen there.
  Server(const Options& options, Pages pages);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const { return port_; }
  int listening_descriptor() const { return listener_.get(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    memory::Descriptor socket;
    std::uint32_t ipv4 = 0;
    Clock::time_point since{};
    std::string request = {};
    std::string answer = {};  // the rest that is not sent yet
    bool answered = false;
  };
  enum class Over { kNo, kYes };

  void run();
  void take_clients();
  void evict_one();
  Over serve(Client& client) const;
  std::string answer_to(std::string_view request) const;
  Response response_to(std::string_view method, std::string_view path, std::string_view host) const;

  const Pages pages_;
  const std::size_t clients_max_;
  const bool is_local_;
  std::uint16_t port_ = 0;
  memory::Descriptor listener_;
  memory::Descriptor end_;  // an eventfd
  std::list<Client> clients_;
  Clock::time_point listens_from_{};  // later than now if no descriptor was left
  std::thread thread_;
};

}  // namespace sluice::http
