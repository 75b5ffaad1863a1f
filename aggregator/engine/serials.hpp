// The serials of CHALLENGEs, which JOINs repeat: one counter per engine tells what was asked for
// before and after something happened.
#pragma once

#include <cstdint>

namespace sluice::aggregator {

class Serials {
 public:
  std::uint64_t next() { return ++newest_; }
  std::uint64_t newest() const { return newest_; }

  /// Jobs are forgotten, and what was to be answered to joins that they saw: such joins, those of
  /// serials up to the newest, are void for every job that begins.
  void forget() { void_ = newest_; }
  std::uint64_t last_void() const { return void_; }

 private:
  std::uint64_t newest_ = 0;
  std::uint64_t void_ = 0;
};

}  // namespace sluice::aggregator
