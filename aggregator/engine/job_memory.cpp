#include "aggregator/engine/job_memory.hpp"

#include <cassert>
#include <utility>

#include "aggregator/engine/stream_memory.hpp"

namespace sluice::aggregator {
namespace {

std::size_t buffers_of(const Session& session) {
  return session.streams_of(session.shard) * stream_buffers(session);
}

}  // namespace

std::optional<AbortInfo> JobMemory::refusal(const Session& session) const {
  const std::size_t bytes = job_bytes(session);
  const std::size_t buffers = buffers_of(session);
  const std::size_t buffers_left = config_.buffers_max - claimed_by_all_;
  AbortInfo refusal{.reason = wire::AbortReason::kRefusedSetting, .field = wire::Field::kMemory};
  if (bytes > config_.job_memory_bytes_max) {
    refusal.value_a = (bytes >> 20) + 1;
    refusal.value_b = config_.job_memory_bytes_max >> 20;
  } else if (buffers > buffers_left) {
    refusal.value_a = ((buffers * session.payload_bytes) >> 20) + 1;
    refusal.value_b = (buffers_left * session.payload_bytes) >> 20;
  } else {
    return std::nullopt;
  }
  return refusal;
}

void JobMemory::claim(const Session& session) {
  assert(buffers_ == 0);
  buffers_ = buffers_of(session);
  claimed_by_all_ += buffers_;
  assert(claimed_by_all_ <= config_.buffers_max);
}

void JobMemory::give_back() {
  assert(claimed_by_all_ >= buffers_);
  claimed_by_all_ -= std::exchange(buffers_, 0);
}

}  // namespace sluice::aggregator
