// The serials of CHALLENGEs, which JOINs repeat. They come from one counter per engine, so they
// show whether a CHALLENGE was sent before or after an event.
#pragma once

#include <cstdint>

namespace sluice::aggregator {

class Serials {
 public:
  std::uint64_t next() { return ++newest_; }
  std::uint64_t newest() const { return newest_; }

  /// Ended jobs are removed with their tombstones. So all joins that they may have seen, with
  /// serials up to the newest, are void for every new job.
  void forget() { void_ = newest_; }
  std::uint64_t last_void() const { return void_; }

 private:
  std::uint64_t newest_ = 0;
  std::uint64_t void_ = 0;
};

}  // namespace sluice::aggregator
