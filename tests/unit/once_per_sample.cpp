#include "aggregator/monitoring/once_per_sample.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/catch.hpp"

namespace once_per_sample_tests {

using sluice::aggregator::OncePerSample;

TEST_CASE("a thousand clients cost one text of each sample") {
  OncePerSample<int> once;
  std::atomic<int> made{0};
  for (int number = 1; number <= 3; ++number) {
    const auto sample = std::make_shared<const int>(number);
    std::atomic<int> right{0};
    const auto ask = [&] {
      for (int i = 0; i < 125; ++i) {
        const auto text = once.text([&] { return sample; },
                                    [&](int of) {
                                      ++made;
                                      return std::to_string(of);
                                    });
        right += *text == std::to_string(number) ? 1 : 0;
      }
    };
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) clients.emplace_back(ask);
    for (std::thread& client : clients) client.join();
    CHECK(right == 1000);
    CHECK(made == number);
  }
}

}  // namespace once_per_sample_tests
