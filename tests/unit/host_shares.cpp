// What of an op among the ranks of a host is summed at all.
#include <optional>
#include <vector>

#include "tests/unit/catch.hpp"
#include "worker/host/engine/shares.hpp"

namespace host_shares_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace sluice::worker::host;

namespace {

using Ranges = std::vector<ElementRange>;

/// Of 10,000 floats in blocks of 256, of which two ranks want these.
Shares shares_of(std::optional<Ranges> first, std::optional<Ranges> second) {
  OpRequest request;
  request.element_count = 10'000;
  return {request,
          {{.held = {}, .wanted = std::move(first)}, {.held = {}, .wanted = std::move(second)}},
          {.ranks = {Rank{0}, Rank{1}}, .limits = {}}};
}

TEST_CASE("Pieces are of what somebody wants, and of whole blocks") {
  const Shares shares = shares_of(Ranges{{1'000, 2'000}}, Ranges{{3'000, 4'000}});
  REQUIRE(shares.pieces() > 0);
  CHECK(shares.piece(0).begin == 768);
  CHECK(shares.piece(shares.pieces() - 1).end == 4'000);
  for (std::uint64_t piece = 1; piece < shares.pieces(); ++piece) {
    CHECK(shares.piece(piece).begin == shares.piece(piece - 1).end);
    CHECK(shares.piece(piece).begin % 256 == 0);
  }
}

TEST_CASE("If a rank wants all, so much is in pieces; if nobody wants anything, there are none") {
  const Shares all = shares_of(std::nullopt, Ranges{});
  CHECK(all.piece(0).begin == 0);
  CHECK(all.piece(all.pieces() - 1).end == 10'000);
  CHECK(shares_of(Ranges{}, Ranges{{5, 5}}).pieces() == 0);
}

}  // namespace

}  // namespace host_shares_tests
