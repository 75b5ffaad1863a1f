#include "worker/engine/liveness.hpp"

namespace sluice::worker {

void Liveness::begin(bool is_new_epoch, Duration interval, Time now) {
  if (is_new_epoch) {
    sent_ = acknowledged_ = 0;
    beacon_ = 0;
    beacons_ = 0;
  }
  interval_ = interval;
  received_at_ = due_ = now;
}

void Liveness::fill_next(wire::KeepAlive& packet, Time now) {
  packet.number = ++sent_;
  packet.newest_beacon = beacon_;
  packet.beacons_received = beacons_;
  sent_at_ = now;
  due_ = after(now, interval_);
}

bool Liveness::on_acknowledgement(std::uint64_t number, Time now) {
  if (number <= acknowledged_) return false;
  acknowledged_ = number;
  received_at_ = now;
  return true;
}

/// A BEACON shows that this rank receives the group. It shows nothing of the path of all other
/// packets, so it is no sign of liveness. If the aggregator may assume that we do not receive the
/// group, a KEEPALIVE corrects that at once.
bool Liveness::on_beacon(std::uint64_t number, Time now) {
  if (number <= beacon_) return false;
  if (beacon_ == 0 || number - beacon_ > wire::kBeaconsMissed) due_ = now;
  const std::uint64_t step = number - beacon_;
  beacons_ = (step < wire::kBeaconsTold ? beacons_ << step : 0) | 1;
  beacon_ = number;
  return true;
}

}  // namespace sluice::worker
