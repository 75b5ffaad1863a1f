// Measures where the cycles of a polling loop go. A turn with work is measured as a whole. In every
// kSampleEvery-th such turn the stages are measured separately, and the turn is not counted, as
// reading the counter at each change takes some dozens of cycles. That cost is measured and
// subtracted; the stages' shares are those of the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "bench/pktgen/cycles.hpp"
#include "common/base/stage.hpp"

namespace sluice::pktgen {

/// Sums since the start.
struct StageCycles {
  std::uint64_t cycles = 0;              ///< of turns whose stages were not measured separately
  std::uint64_t packets = 0;             ///< received and sent in those turns
  std::array<double, kStages> stages{};  ///< of the other turns

  StageCycles since(const StageCycles& earlier) const;
  void add(const StageCycles& other);
  double per_packet() const;  ///< 0 if there were none
  double share(Stage stage) const;
  double per_packet(Stage stage) const { return per_packet() * share(stage); }
};

class StageClock final : public StageObserver {
 public:
  StageClock();

  void begin_turn() {
    sampling_ = turn_ % kSampleEvery == 0;
    stage_ = Stage::kReceive;
    begin_ = last_ = cycles();
  }

  /// Whether stages are measured separately in this turn; in other turns enter() does nothing.
  bool sampling() const { return sampling_; }

  void enter(Stage stage) override {
    if (!sampling_) return;
    const std::uint64_t now = cycles();
    spent_[static_cast<std::size_t>(stage_)] += now - last_;
    ++left_[static_cast<std::size_t>(stage_)];
    last_ = now;
    stage_ = stage;
  }

  /// Ends a turn that handled so many packets; with none it does not count.
  void end_turn(std::size_t packets) {
    enter(Stage::kOther);
    if (packets != 0) count(packets);
    if (sampling_) spent_ = left_ = {};
  }

  const StageCycles& sums() const { return sums_; }

 private:
  static constexpr std::uint64_t kSampleEvery = 8;

  void count(std::size_t packets);

  double cost_of_enter_ = 0;  // cycles
  std::uint64_t turn_ = 0;    // turns with work
  bool sampling_ = false;
  Stage stage_ = Stage::kReceive;
  std::uint64_t begin_ = 0;
  std::uint64_t last_ = 0;
  std::array<std::uint64_t, kStages> spent_{};  // in this turn
  std::array<std::uint64_t, kStages> left_{};   // how often
  StageCycles sums_;
};

}  // namespace sluice::pktgen
