#include "aggregator/daemon/start_checks.hpp"

#include <string>

#include <unistd.h>

#include <sluice/error.hpp>

#include "aggregator/daemon/control.hpp"
#include "common/config/address.hpp"
#include "common/config/pci_device.hpp"
#include "common/http/server.hpp"
#include "common/memory/unix_socket.hpp"
#include "common/net/own_directory.hpp"
#include "common/net/vhost.hpp"

namespace sluice::aggregator {
namespace {

/// Adds `what` to whatever is thrown.
template <class Check>
void check_of(const std::string& what, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    throw Error(error.code(), what + ": " + error.what());
  }
}

/// A directory made as at the start, in which sockets are tried. It is removed again if it did not
/// exist.
class TriedDirectory {
 public:
  explicit TriedDirectory(const std::string& path)
      : path_(path), made_(!path.empty() && net::make_own_directory(net::kVhostDirectory, path)) {}
  ~TriedDirectory() {
    if (made_) rmdir(path_.c_str());
  }
  TriedDirectory(const TriedDirectory&) = delete;
  TriedDirectory& operator=(const TriedDirectory&) = delete;

 private:
  const std::string path_;
  const bool made_;
};

}  // namespace

void check_start(const config::AggregatorConfig& config) {
  config::check_machine_has(config::packet_memory_mib(config));
  if (!config.metrics_listen.empty()) {
    const auto listen = config::parse_listen_address("metrics-listen", config.metrics_listen);
    check_of("metrics-listen",
             [&] { http::check_address(config::ipv4_to_string(listen.ipv4), listen.port); });
  }
  for (const std::string& port : config.ports)
    if (config::is_pci_device(port))
      check_of("port '" + port + "'", [&] { config::check_pci_device(port); });
  const TriedDirectory vhost(config.vhost_dir);
  if (!config.control_socket.empty()) memory::UnixSocket::check_listen(config.control_socket);
}

}  // namespace sluice::aggregator
