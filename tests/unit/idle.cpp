#include "common/base/idle.hpp"

#include <cstddef>

#include "common/config/choices.hpp"
#include "tests/unit/catch.hpp"

namespace idle_tests {

using namespace sluice;

TEST_CASE("every idle strategy turns") {
  for (const auto& [strategy, word] : config::kIdleChoices) {
    Idle idle(strategy);
    for (std::size_t turn = 0; turn < 5000; ++turn) idle.work_done(turn % 2500 == 0);
  }
}

}  // namespace idle_tests
