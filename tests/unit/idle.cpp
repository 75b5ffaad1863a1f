#include "common/base/idle.hpp"

#include <cstddef>

#include <catch2/catch.hpp>

#include "common/config/choices.hpp"

using namespace sluice;

TEST_CASE("every idle strategy turns") {
  for (const auto& [strategy, word] : config::kIdleChoices) {
    Idle idle(strategy);
    for (std::size_t turn = 0; turn < 5000; ++turn) idle.work_done(turn % 2500 == 0);
  }
}
