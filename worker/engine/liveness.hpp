// Signs of life between a rank and the aggregator that has taken it in (rule 24 of
// docs/protocol.md): the KEEPALIVEs that go out, which of them was acknowledged, when anything came
// last, and which BEACONs of the job's group were received. Pure state; the membership sends.
#pragma once

#include <cstdint>

#include "common/base/time.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

class Liveness {
 public:
  /// The aggregator has taken the rank in, and wants a KEEPALIVE this often. Within one epoch the
  /// numbers must go on rising.
  void begin(bool is_new_epoch, Duration interval, Time now);
  void pause() { due_ = kNever; }  ///< while the rank joins again

  // ------------------------------------------------------------------------------ KEEPALIVEs
  Time due() const { return due_; }  ///< of the next
  Duration interval() const { return interval_; }
  void ask(Time now) { due_ = now; }
  /// Unless one went out less than `at_least` ago.
  void ask(Time now, Duration at_least) {
    if (now - sent_at_ >= at_least) due_ = now;
  }
  /// Fills in what the next one says, which goes out now.
  void fill_next(wire::KeepAlive& packet, Time now);
  bool on_acknowledgement(std::uint64_t number, Time now);
  /// Whether one of this number may be refused: it was sent, and not acknowledged.
  bool may_be_refused(std::uint64_t number) const {
    return number > acknowledged_ && number <= sent_;
  }

  // -------------------------------------------------------------------------------- what came
  void received(Time now) { received_at_ = now; }
  Time received_at() const { return received_at_; }  ///< when anything except BEACONs came last
  void excuse(Duration pause) { received_at_ += pause; }
  bool on_beacon(std::uint64_t number, Time now);

  void stream_answered(Time now) { stream_answered_ = now; }
  Time stream_answered_at() const { return stream_answered_; }  ///< any stream, last

 private:
  std::uint64_t sent_ = 0;  // KEEPALIVEs of this epoch
  std::uint64_t acknowledged_ = 0;
  std::uint64_t beacon_ = 0;   // the newest received in this epoch
  std::uint32_t beacons_ = 0;  // bit i: beacon_ - i was received
  Duration interval_{};
  Time due_ = kNever;
  Time sent_at_{};
  Time received_at_{};
  Time stream_answered_{};
};

}  // namespace sluice::worker
