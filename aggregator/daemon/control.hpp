// Commands of an operator, over a Unix socket of messages (SOCK_SEQPACKET). A connection carries
// one request, words separated by blanks, and its answer: an object of JSON, in one or more
// messages. Then it is closed. docs/operators.md has the commands.
//
// It belongs to the control thread, which never waits for a client: a client that sends nothing, or
// does not read, loses its connection after some seconds, or to another client that needs the
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "aggregator/monitoring/limited_log.hpp"
#include "common/base/time.hpp"
#include "common/memory/descriptor.hpp"
#include "common/memory/unix_socket.hpp"

namespace sluice::aggregator {

/// What an operator can request. Each action returns a sentence that says what was done. It throws
/// Error kInvalidArgument if the request makes no sense.
struct ControlActions {
  std::function<std::string()> status;  ///< returns JSON; changes nothing
  std::function<std::string(std::uint32_t job)> kick;
  std::function<std::string(std::uint64_t jobs)> limit_jobs;
  /// 0 streams: no limit.
  std::function<std::string(std::uint32_t job, std::uint64_t streams)> limit_streams;
  std::function<std::string(bool on)> drain;
  /// Takes over the file; 0 frames: no limit.
  std::function<std::string(memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                            std::uint32_t frame_bytes)>
      capture;
  std::function<std::string()> stop_capture;
};

class Control {
 public:
  /// Serves at `path` all who may write to that socket: this user and root, or the group, too.
  /// Throws as memory::UnixSocket::listen does.
  Control(const std::string& path, bool for_group, ControlActions actions,
          std::shared_ptr<LimitedLog> log);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// Accepts connections, serves requests, and sends the rest of answers.
  void poll(Time now);
  /// Readable while a connection or a request waits.
  int descriptor() const { return arrivals_.get(); }

 private:
  struct Client {
    memory::UnixSocket socket;
    uid_t user = 0;
    Time since{};
    std::string answer = {};  ///< the rest that is not sent yet
    bool answered = false;
  };

  void take_connections(Time now);
  void evict_one();
  bool serve(Client& client);
  std::string answer(const Client& client, std::string_view request, memory::Descriptor file);
  std::string carry_out(std::string_view request, memory::Descriptor file);

  const std::string path_;
  const ControlActions actions_;
  const std::shared_ptr<LimitedLog> log_;
  memory::UnixSocket socket_;
  // Epoll of the socket, and of clients that have not sent a request yet.
  const memory::Descriptor arrivals_;
  std::list<Client> clients_;
};

}  // namespace sluice::aggregator
