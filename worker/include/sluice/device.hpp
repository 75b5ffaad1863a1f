// Tensors that lie on a device, such as a GPU, and pass through host memory: what the library and
// whoever copies between the two tell each other, so that copies, search, sending and results of
// one op overlap, and only blocks that are not zero are copied.
//
// The tensors of the call are host memory then, with the elements at their places. The device
// writes there the blocks that are not zero, and leaves the others as they are: they are never
// read. It sets a bit for each in a bitmap, which spares the search. Of the results the library
// writes those blocks that are not zero on all ranks, and sets their bits; the others the device
// clears by itself.
//
// Blocks are copied in chunks of some MiB. Two words in host memory count them, one for each
// direction. They only grow; they are read and written while the op runs, by the device too.
#pragma once

#include <cstdint>
#include <span>

#include <sluice/types.hpp>

namespace sluice {

/// How an op cuts a tensor. Element e is in block e / block_elements of the whole tensor, of which
/// a rank may hold and want but a part. A block that is partly in it is copied as far as it is.
struct DevicePlan {
  ElementType type = ElementType::kFloat32;  ///< of moved elements an integer: -0.0 is not zero
  std::uint32_t block_elements = 1;
  std::uint32_t blocks = 0;
  std::uint64_t held_begin = 0, held_end = 0;      ///< the elements in the input
  std::uint64_t wanted_begin = 0, wanted_end = 0;  ///< and in the output
  /// The output is that one piece. Else it has several, one after the other: all of it is written,
  /// zeros too, and it is one chunk.
  bool is_wanted_in_one = true;

  std::uint32_t first_held() const { return block_of(held_begin); }
  std::uint32_t held_blocks() const { return blocks_of(held_begin, held_end); }
  std::uint32_t first_wanted() const { return block_of(wanted_begin); }
  std::uint32_t wanted_blocks() const { return blocks_of(wanted_begin, wanted_end); }

 private:
  std::uint32_t block_of(std::uint64_t element) const {
    return static_cast<std::uint32_t>(element / block_elements);
  }
  std::uint32_t blocks_of(std::uint64_t begin, std::uint64_t end) const {
    return begin == end ? 0 : block_of(end - 1) - block_of(begin) + 1;
  }
};

/// What both sides read and write; all of it lives until the op is done.
struct DeviceWords {
  std::uint32_t chunk_blocks = 1;  ///< counted from the first block held, and the first one wanted
  /// 0: nothing has arrived; 1: the bitmap has; 1 + n: so have the first n chunks of the input.
  const std::uint32_t* arrived = nullptr;
  /// As ReduceOptions::nonzero_blocks: bit per block of the whole tensor.
  std::span<const std::uint64_t> nonzero_blocks = {};
  /// Zeros at first: the library sets the bits of the blocks that it has written to the output.
  std::span<std::uint64_t> result_blocks = {};
  /// How many chunks of the output are final, with their bits. Whoever waits for it on behalf of
  /// the device may set it to kReleased once the op has failed.
  std::uint32_t* final = nullptr;

  static constexpr std::uint32_t kReleased = 0x7FFF'FFFF;
};

class DeviceTensors {
 public:
  virtual ~DeviceTensors() = default;

  /// Called once for an op, by the thread that starts it, before anything else of it; what it
  /// throws goes to the caller, and the op has not begun. Begins to copy.
  virtual DeviceWords begin(const DevicePlan& plan) = 0;
};

}  // namespace sluice
