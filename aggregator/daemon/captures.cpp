#include "aggregator/daemon/captures.hpp"

#include <chrono>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include <sluice/error.hpp>

namespace sluice::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestCapture = 3600s;

}  // namespace

std::string Captures::begin(memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                            std::uint32_t frame_bytes) {
  if (seconds < 1 || seconds > kLongestCapture / 1s)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("seconds = {}: 1..{} expected", seconds, kLongestCapture / 1s));
  if (under_way_) throw Error(ErrorCode::kInvalidArgument, "another capture is under way");
  under_way_ = {std::make_shared<net::Capture>(
      file.release(), net::CaptureOptions{.frames_max = frames,
                                          .longest = std::chrono::seconds(seconds),
                                          .frame_bytes = frame_bytes})};
  latest_.emplace();
  lanes_.capture(under_way_->capture);
  return fmt::format("frames are captured for {} s at most", seconds);
}

std::string Captures::stop() {
  if (!under_way_) throw Error(ErrorCode::kInvalidArgument, "nothing is captured");
  under_way_->capture->stop();
  return "the capture ends";
}

/// When a capture has ended, lanes release it before it is closed.
void Captures::look_after() {
  if (!under_way_) return;
  net::Capture& capture = *under_way_->capture;
  latest_ = capture.counters();
  if (!std::exchange(latest_->done, false)) return;
  if (!std::exchange(under_way_->is_released, true)) lanes_.capture(nullptr);
  if (under_way_->capture.use_count() > 1) return;
  capture.finish();
  if (!capture.is_finished()) return;
  latest_ = capture.counters();
  under_way_.reset();
  if (!latest_->error.empty())
    peer_log_->log("captures", spdlog::level::err, "the capture has ended: {}", latest_->error);
  peer_log_->log("captures", spdlog::level::info, "{} frames were captured, {} more were missed",
                 latest_->written, latest_->missed);
}

}  // namespace sluice::aggregator
