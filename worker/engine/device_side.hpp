// An op whose tensors are on a device searches no non-zero blocks, and writes no zeros. In place of
// that it has bitmaps, and counts of the chunks that have been copied.
// include/sluice/device.hpp tells how the device and the engine share the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/base/ids.hpp"
#include "worker/engine/op_request.hpp"

namespace sluice::worker {

class DeviceSide {
 public:
  explicit DeviceSide(const DeviceRequest& request);

  /// Before that no block is known, and the op cannot begin.
  bool has_bitmap() const { return arrived() != 0; }
  /// Whether a block that is not zero can be read.
  bool has_arrived(BlockIndex b) const {
    return arrived() > 1 + (b.value - plan_.first_held()) / words_.chunk_blocks;
  }

  /// Blocks first .. first + count - 1 are in the output.
  void has_result(BlockIndex first, std::uint64_t count);
  /// Whether blocks that are zero on all ranks must be written to the output.
  bool wants_zeros() const { return !plan_.is_wanted_in_one; }
  /// The block changes no more. To be followed, after some, by publish_final(). Both are only for
  /// outputs in one piece: see wants_zeros().
  void has_ended(BlockIndex b);
  void publish_final();
  /// All of the output is final.
  void finish();

 private:
  std::uint32_t arrived() const {
    // The device writes it, too; a const word cannot be read through an atomic_ref in C++20.
    return std::atomic_ref(const_cast<std::uint32_t&>(*words_.arrived))
        .load(std::memory_order_acquire);
  }
  void publish(std::uint32_t chunks);

  DevicePlan plan_;
  DeviceWords words_;
  std::vector<std::uint32_t> left_;  // of each chunk of the output: blocks that are not final
  std::uint32_t final_ = 0;          // chunks
};

// For an op that begins once all of its tensor has come, and gives back all of it at its end. The
// buffers between the device and us are then a tensor like any other.

/// Also true if the tensor is not on a device.
bool has_arrived(const OpRequest& request);
/// What has arrived becomes the request's tensor, and its bitmap the caller's.
void take_from_device(OpRequest& request);
/// The sums are complete. `request` is as it was before take_from_device().
void give_to_device(const OpRequest& request);

}  // namespace sluice::worker
