// A communicator's split into parts: the op by which its ranks tell each other which part each
// joins, and what each part's job is then.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/protocol/secret.hpp"
#include "worker/engine/known_as.hpp"

namespace sluice {

/// One rank's part in the op: elements of an all_gather.
struct SplitEntry {
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::uint64_t nonce = 0;  ///< rank 0's makes the ids of this split's jobs
};
static_assert(sizeof(SplitEntry) == 16);

/// Tag of the op: who calls something else meanwhile is told so.
enum class SplitKind : std::uint64_t {
  kSplit = 0x74696c7073,      // "split"
  kDuplicate = 0x6574616369,  // "icate"
};

struct Split {
  SplitKind kind = SplitKind::kSplit;
  JobOptions parent;  ///< without the secret
  worker::KnownAs parent_known_as;
  std::shared_ptr<const Secret> secret;  ///< or null
  std::vector<SplitEntry> entries;       ///< by rank; before the op is done, only this rank's

  std::int32_t color() const { return entries[parent.rank].color; }
  /// Once the op is done, of a color that is not negative: the job that this rank is to join.
  JobOptions job() const;
  /// "1234 (color 1 of job bert-large (108174750))".
  worker::KnownAs known_as() const;
};

}  // namespace sluice
