// The split of a communicator into parts: the op in which ranks exchange the part that each joins,
// and the job of each part.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/protocol/secret.hpp"
#include "worker/engine/job_label.hpp"

namespace sluice {

/// One rank's elements in the op, which is an all_gather.
struct SplitEntry {
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::uint64_t nonce = 0;  ///< that of rank 0 makes the ids of the jobs of this split
};
static_assert(sizeof(SplitEntry) == 16);

/// The tag of the op, so that a rank that calls something else gets a clear error.
enum class SplitKind : std::uint64_t {
  kSplit = 0x74696c7073,      // "split"
  kDuplicate = 0x6574616369,  // "icate"
};

struct Split {
  SplitKind kind = SplitKind::kSplit;
  JobOptions parent;  ///< without the secret
  worker::JobLabel parent_label;
  std::shared_ptr<const Secret> secret;  ///< or null
  /// By rank; before the op is done, it has only this rank's.
  std::vector<SplitEntry> entries;

  std::int32_t color() const { return entries[parent.rank].color; }
  /// The job that this rank joins. Call it when the op is done, if the color is not negative.
  JobOptions job() const;
  /// "1234 (color 1 of job bert-large (108174750))".
  worker::JobLabel label() const;
};

}  // namespace sluice
