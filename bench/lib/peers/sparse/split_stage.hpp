/// The first stage of the split algorithms: each rank gets the pairs of its range from all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/lib/peers/sparse/network.hpp"
#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {

/// Runs from the other ranks, with room for what is still to come.
class Split {
 public:
  /// Tells all ranks how many pairs will come. `own` must outlive this.
  Split(Network& network, Run own, const std::vector<std::uint32_t>& begins)
      : network_(network), parts_(cut(own, begins)) {
    std::vector<std::uint32_t> sizes;
    for (const Run part : parts_) sizes.push_back(std::uint32_t(part.size()));
    for (const std::uint32_t size : network.all_to_all(sizes)) runs_.emplace_back(size);
  }

  /// Starts to send to the rank `places` after this one, and to receive from the rank `places`
  /// before.
  void start(int places, Network::Requests& requests) {
    const int to = network_.after(places), from = network_.before(places);
    network_.start_receive<Pair>(from, runs_[std::size_t(from)], requests);
    network_.start_send<Pair>(to, parts_[std::size_t(to)], requests);
  }

  /// The run of the rank `places` before this one; 0: its own.
  Run run_from(int places) const {
    const auto from = std::size_t(network_.before(places));
    return places == 0 ? parts_[from] : Run(runs_[from]);
  }

  /// Sends direct messages to all; returns the runs of all ranks when they have come.
  std::vector<Run> exchange() {
    Network::Requests requests;
    for (int places = 1; places < network_.ranks(); ++places) start(places, requests);
    Network::wait(requests);
    std::vector<Run> runs;
    for (int places = 0; places < network_.ranks(); ++places) runs.push_back(run_from(places));
    return runs;
  }

 private:
  Network& network_;
  std::vector<Run> parts_;   // to each rank
  std::vector<Pairs> runs_;  // from each rank
};

/// All ranks' pairs one after another; the counts are not known before.
inline Pairs gather_pairs(Network& network, Run own, std::vector<std::size_t>& counts) {
  counts = network.all_gather(own.size());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  Pairs all(total);
  network.all_gather_parts<Pair>(own, counts, all.data());
  return all;
}

}  // namespace sparse
