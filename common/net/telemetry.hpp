// Commands of DPDK's telemetry socket (for dpdk-telemetry.py). Each answers with named numbers.
// They stay registered as long as the process lives; the object that answers them may end before.
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
  using Numbers = std::vector<std::pair<std::string, std::uint64_t>>;  ///< a limited number
  /// Gets the text behind the command's comma, which may be empty. Returns nothing if what the text
  /// names does not exist. Called on DPDK's thread.
  using Answer = std::function<std::optional<Numbers>(std::string_view parameter)>;

  struct Command {
    std::string name;  ///< "/sluice/jobs"
    std::string help;
    Answer answer;
  };

  /// There can be one at a time per process, while DPDK's environment exists.
  explicit Telemetry(const std::vector<Command>& commands);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;
};

}  // namespace sluice::net
