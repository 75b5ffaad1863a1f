// Commands of DPDK's telemetry socket (dpdk-telemetry.py reads it), each of which answers with
// named numbers. They stay registered as long as the process lives; who serves them may end before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::net {

class Telemetry {
 public:
  static constexpr std::size_t kMostNumbers = 256;
  using Numbers = std::vector<std::pair<std::string, std::uint64_t>>;  ///< at most so many
  /// Gets what follows the command's comma, perhaps nothing. None: there is no such thing. Called
  /// on DPDK's thread.
  using Answer = std::function<std::optional<Numbers>(std::string_view parameter)>;

  struct Command {
    std::string name;  ///< "/sluice/jobs"
    std::string help;
    Answer answer;
  };

  /// One at a time per process, while DPDK's environment is there.
  explicit Telemetry(const std::vector<Command>& commands);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;
};

}  // namespace sluice::net
