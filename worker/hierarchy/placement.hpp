// Which ranks of a job are on which host.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/ids.hpp"

namespace sluice::worker::hierarchy {

class Placement {
 public:
  /// `host_ids` has the host id of each rank. A rank with id 0 is on a host by itself.
  explicit Placement(std::span<const std::uint64_t> host_ids) {
    std::unordered_map<std::uint64_t, std::uint16_t> number_of;
    for (std::uint16_t rank = 0; rank < host_ids.size(); ++rank) {
      const auto next = static_cast<std::uint16_t>(hosts_.size());
      const std::uint16_t host =
          host_ids[rank] == 0 ? next : number_of.emplace(host_ids[rank], next).first->second;
      if (host == next) hosts_.emplace_back();
      hosts_[host].push_back(Rank{rank});
      host_of_.push_back(host);
    }
    assert(!hosts_.empty());
  }

  std::uint16_t ranks() const { return static_cast<std::uint16_t>(host_of_.size()); }
  /// Hosts are numbered in the order of their lowest ranks.
  std::uint16_t hosts() const { return static_cast<std::uint16_t>(hosts_.size()); }
  std::uint16_t host_of(Rank rank) const { return host_of_[rank.value]; }
  /// Ascending.
  const std::vector<Rank>& ranks_of(std::uint16_t host) const { return hosts_[host]; }
  std::uint16_t local_rank_of(Rank rank) const {
    const std::vector<Rank>& peers = ranks_of(host_of(rank));
    return static_cast<std::uint16_t>(std::ranges::find(peers, rank) - peers.begin());
  }

  /// How many ranks of each host carry its sums to other hosts. They are the lowest ranks of the
  /// host. The number is the number of ranks on the smallest host.
  std::uint16_t rails() const {
    const auto fewest = std::ranges::min_element(hosts_, {}, &std::vector<Rank>::size);
    return static_cast<std::uint16_t>(fewest->size());
  }
  /// The ranks that carry the same share of a tensor, one on each host.
  std::vector<Rank> rail(std::uint16_t number) const {
    std::vector<Rank> ranks;
    for (const std::vector<Rank>& host : hosts_) ranks.push_back(host[number]);
    return ranks;
  }

 private:
  std::vector<std::uint16_t> host_of_;  // by rank
  std::vector<std::vector<Rank>> hosts_;
};

}  // namespace sluice::worker::hierarchy
