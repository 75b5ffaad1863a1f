#include "tests/sim/device_tensor.hpp"

#include <algorithm>
#include <utility>

#include "tests/sim/bug.hpp"

namespace sluice::sim {
namespace {

/// Contents of host memory that the device does not write.
constexpr std::byte kGarbage{0x7f};

}  // namespace

DeviceTensor::DeviceTensor(const DevicePlan& plan, std::uint32_t chunk_blocks,
                           std::vector<bool> travels, std::span<std::byte> input,
                           std::span<std::byte> output)
    : plan_(plan),
      chunk_blocks_(chunk_blocks),
      travels_(std::move(travels)),
      input_(input),
      output_(output),
      in_place_(input.data() == output.data() && input.size() == output.size()),
      host_(input.size(), kGarbage),
      host_output_(in_place_ ? 0 : output.size(), kGarbage),
      bitmap_((plan.blocks + 63) / 64),
      results_((plan.blocks + 63) / 64) {}

std::byte* DeviceTensor::host_output() {
  return in_place_ ? host_.data() : host_output_.data();
}

DeviceWords DeviceTensor::words() {
  return {.chunk_blocks = chunk_blocks_,
          .arrived = &arrived_,
          .nonzero_blocks = bitmap_,
          .result_blocks = results_,
          .final = &final_};
}

std::uint32_t DeviceTensor::chunks_of(std::uint32_t blocks) const {
  return plan_.is_wanted_in_one ? (blocks + chunk_blocks_ - 1) / chunk_blocks_ : 1;
}

/// Where a block lies in memory that has only these elements.
DeviceTensor::Piece DeviceTensor::piece_of(std::uint32_t block, std::uint64_t begin,
                                           std::uint64_t end) const {
  const std::size_t size = element_bytes(plan_.type);
  const std::uint64_t first = std::uint64_t{block} * plan_.block_elements;
  const std::uint64_t from = std::max(begin, first);
  const std::uint64_t to = std::min(end, first + plan_.block_elements);
  return {(from - begin) * size, (to - from) * size};
}

bool DeviceTensor::copy_next() {
  if (arrived_ == 0) {
    for (std::size_t b = 0; b < travels_.size(); ++b)
      if (travels_[b]) bitmap_[b / 64] |= std::uint64_t{1} << (b % 64);
    arrived_ = 1;
    return true;
  }
  const std::uint32_t begin = (arrived_ - 1) * chunk_blocks_;
  if (begin >= plan_.held_blocks()) return false;
  const std::uint32_t end = std::min(begin + chunk_blocks_, plan_.held_blocks());
  for (std::uint32_t b = plan_.first_held() + begin; b < plan_.first_held() + end; ++b) {
    if (!travels_[b]) continue;
    const Piece piece = piece_of(b, plan_.held_begin, plan_.held_end);
    const auto bytes = input_.subspan(piece.offset, piece.size);
    std::copy(bytes.begin(), bytes.end(),
              host_.begin() + static_cast<std::ptrdiff_t>(piece.offset));
  }
  ++arrived_;
  return true;
}

void DeviceTensor::take_block(std::uint32_t block) {
  const Piece piece = piece_of(block, plan_.wanted_begin, plan_.wanted_end);
  const auto out = output_.subspan(piece.offset, piece.size);
  if ((results_[block / 64] >> (block % 64) & 1) != 0)
    std::copy_n(host_output() + piece.offset, piece.size, out.begin());
  else
    std::fill(out.begin(), out.end(), std::byte{});
}

void DeviceTensor::take_results() {
  require(final_ <= chunks_of(plan_.wanted_blocks()), "more chunks are final than there are");
  if (!plan_.is_wanted_in_one) {
    if (std::exchange(taken_, final_) != final_)
      std::copy_n(host_output(), output_.size(), output_.begin());
    return;
  }
  for (; taken_ < final_; ++taken_)
    for (std::uint32_t b = taken_ * chunk_blocks_;
         b < std::min((taken_ + 1) * chunk_blocks_, plan_.wanted_blocks()); ++b)
      take_block(plan_.first_wanted() + b);
}

std::vector<std::vector<std::byte>> DeviceTensor::hand_back() {
  std::vector<std::vector<std::byte>> memory;  // no initializer list, which would copy
  memory.push_back(std::move(host_));
  memory.push_back(std::move(host_output_));
  return memory;
}

}  // namespace sluice::sim
