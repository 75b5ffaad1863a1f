// A directory of a test's own, for sockets too: its path is short.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/unit/catch.hpp"

namespace sluice::net::testing {

struct TemporaryDirectory {
  std::string path = "/tmp/sluice-test.XXXXXX";
  TemporaryDirectory() { REQUIRE(mkdtemp(path.data())); }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
};

}  // namespace sluice::net::testing
