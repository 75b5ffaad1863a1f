// A tensor on a device: its data goes to host memory chunk by chunk, and results are copied back,
// each at a time that the test chooses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sluice/device.hpp>

namespace sluice::sim {

class DeviceTensor {
 public:
  /// `input` and `output` are the device's memory of what is held and wanted. They may be the same
  /// or separate; the host's memory is like that, too. `travels` says for each block whether it is
  /// copied.
  DeviceTensor(const DevicePlan& plan, std::uint32_t chunk_blocks, std::vector<bool> travels,
               std::span<std::byte> input, std::span<std::byte> output);

  std::span<std::byte> host_input() { return host_; }
  std::byte* host_output();
  DeviceWords words();

  /// Copies the bitmap first, then one chunk after the other. Returns false if all were copied.
  bool copy_next();
  /// Takes all results that are final.
  void take_results();
  bool has_all_results() const { return taken_ == chunks_of(plan_.wanted_blocks()); }

  /// Returns the host's memory to the caller.
  std::vector<std::vector<std::byte>> hand_back();

 private:
  struct Piece {
    std::size_t offset = 0;
    std::size_t size = 0;
  };
  Piece piece_of(std::uint32_t block, std::uint64_t begin, std::uint64_t end) const;
  std::uint32_t chunks_of(std::uint32_t blocks) const;
  void take_block(std::uint32_t block);

  const DevicePlan plan_;
  const std::uint32_t chunk_blocks_;
  const std::vector<bool> travels_;
  const std::span<std::byte> input_;
  const std::span<std::byte> output_;
  const bool in_place_;
  std::vector<std::byte> host_;
  std::vector<std::byte> host_output_;
  std::vector<std::uint64_t> bitmap_;
  std::vector<std::uint64_t> results_;
  std::uint32_t arrived_ = 0;
  std::uint32_t final_ = 0;
  std::uint32_t taken_ = 0;  // chunks
};

}  // namespace sluice::sim
