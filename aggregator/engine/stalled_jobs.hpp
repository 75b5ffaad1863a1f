// The jobs of one engine with a stream that may wait for a packet buffer. They retry on each turn
// of the loop, because the engine does not see when a buffer becomes free.
#pragma once

#include <vector>

#include "common/base/packet_buffer.hpp"
#include "common/base/time.hpp"

namespace sluice::aggregator {

class Job;

class StalledJobs {
 public:
  void add(Job& job, Time now);
  void remove(const Job& job);

  /// When retry() is due; kNever: no job waits.
  Time due() const { return jobs_.empty() ? kNever : due_; }
  void retry(Time now, PacketSink& sink);

 private:
  std::vector<Job*> jobs_;
  Time due_ = kNever;
};

}  // namespace sluice::aggregator
