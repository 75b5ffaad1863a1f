#include "common/net/rss.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_thash.h>

#include <sluice/error.hpp>

namespace sluice::net {
namespace {

constexpr std::size_t kMaxKeyBytes = 256;
constexpr std::size_t kUsualKeyBytes = 40;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kUnavailable, why);
}

void must_read(int result, const char* what) {
  if (result != 0) refuse(std::string(what) + " cannot be read: " + rte_strerror(-result));
}

std::vector<std::uint8_t> read_key(std::uint16_t port_id, const rte_eth_dev_info& info) {
  std::vector<std::uint8_t> key(kMaxKeyBytes);
  rte_eth_rss_conf conf{};
  conf.rss_key = key.data();
  conf.rss_key_len = info.hash_key_size != 0 ? info.hash_key_size : std::uint8_t{kUsualKeyBytes};
  must_read(rte_eth_dev_rss_hash_conf_get(port_id, &conf), "the RSS key");
  if ((conf.rss_hf & RTE_ETH_RSS_NONFRAG_IPV4_UDP) == 0) refuse("RSS by UDP ports is off");
  key.resize(conf.rss_key_len);
  if (key.size() < kRssKeyBytes)
    refuse("the RSS key has " + std::to_string(key.size()) + " bytes, at least " +
           std::to_string(kRssKeyBytes) + " expected");
  return key;
}

std::vector<std::uint16_t> read_table(std::uint16_t port_id, const rte_eth_dev_info& info) {
  constexpr std::size_t kGroup = RTE_ETH_RETA_GROUP_SIZE;
  std::vector<rte_eth_rss_reta_entry64> groups((info.reta_size + kGroup - 1) / kGroup);
  for (auto& group : groups) group.mask = ~std::uint64_t{0};
  must_read(rte_eth_dev_rss_reta_query(port_id, groups.data(), info.reta_size), "the RSS table");
  std::vector<std::uint16_t> table;
  for (std::size_t i = 0; i < info.reta_size; ++i)
    table.push_back(groups[i / kGroup].reta[i % kGroup]);
  return table;
}

}  // namespace

std::uint32_t rss_hash(std::span<const std::uint8_t> key, const FlowTuple& tuple) {
  assert(key.size() >= kRssKeyBytes);
  alignas(std::uint32_t) std::array<std::uint8_t, kRssKeyBytes> words_of_key;
  std::copy_n(key.begin(), kRssKeyBytes, words_of_key.begin());
  std::array<std::uint32_t, RTE_THASH_V4_L4_LEN> words{
      tuple.source_ipv4, tuple.destination_ipv4,
      std::uint32_t{tuple.source_port} << 16 | tuple.destination_port};
  return rte_softrss(words.data(), words.size(), words_of_key.data());
}

Rss read_rss(std::uint16_t port_id) {
  rte_eth_dev_info info{};
  must_read(rte_eth_dev_info_get(port_id, &info), "what the device can do");
  if ((info.flow_type_rss_offloads & RTE_ETH_RSS_NONFRAG_IPV4_UDP) == 0)
    refuse("no RSS by UDP ports");
  Rss rss;
  rss.key = read_key(port_id, info);
  rss.table = read_table(port_id, info);
  return rss;
}

SourcePortChooser::SourcePortChooser(const Rss& rss, std::uint32_t own_ipv4,
                                     std::uint16_t first_udp_port, std::uint16_t lanes)
    : mask_(rss.table.size() - 1), entries_(lanes) {
  assert(lanes <= limits::kMaxLanes);
  if (!std::has_single_bit(rss.table.size()) || rss.table.size() > kMaxTable)
    refuse("the RSS table has " + std::to_string(rss.table.size()) +
           " entries, a power of two up to " + std::to_string(kMaxTable) + " expected");
  for (std::size_t i = 0; i < rss.table.size(); ++i)
    if (rss.table[i] < lanes) entries_[rss.table[i]].push_back(static_cast<std::uint16_t>(i));
  const auto contribution = [&](const FlowTuple& part) {
    return static_cast<std::uint16_t>(rss_hash(rss.key, part) & mask_);
  };
  for (unsigned at = 0; at < of_worker_.size(); ++at)
    for (std::uint32_t byte = 0; byte < 256; ++byte)
      of_worker_[at][byte] = contribution({.source_ipv4 = byte << (24 - 8 * at)});
  for (std::uint16_t lane = 0; lane < lanes; ++lane)
    of_lane_.push_back(
        contribution({.destination_ipv4 = own_ipv4,
                      .source_port = first_source_port(lane),
                      .destination_port = static_cast<std::uint16_t>(first_udp_port + lane)}));
  classify(rss.key);
  for (std::uint16_t lane = 0; lane < lanes; ++lane)
    for (std::size_t hash = 0; hash <= mask_; ++hash)
      if (!reaches(lane, hash))
        refuse("the RSS key or table lets no source port lead all workers to queue " +
               std::to_string(lane));
}

/// A counting sort. A lane's first port has none of the bits that are added to it.
void SourcePortChooser::classify(std::span<const std::uint8_t> key) {
  static_assert(std::has_single_bit(kSourcePortsOfLane) &&
                kFirstSourcePort % kSourcePortsOfLane == 0);
  std::vector<std::uint16_t> contributions;
  classes_.resize(mask_ + 1);
  for (std::uint16_t lower = 0; lower < kSourcePortsOfLane; ++lower) {
    contributions.push_back(
        static_cast<std::uint16_t>(rss_hash(key, {.source_port = lower}) & mask_));
    ++classes_[contributions.back()].size;
  }
  std::uint16_t begin = 0;
  for (Class& each : classes_) {
    each.begin = begin;
    begin = static_cast<std::uint16_t>(begin + std::exchange(each.size, std::uint16_t{0}));
  }
  lower_.resize(kSourcePortsOfLane);
  for (std::uint16_t lower = 0; lower < kSourcePortsOfLane; ++lower) {
    Class& to = classes_[contributions[lower]];
    lower_[std::size_t{to.begin} + to.size++] = lower;
  }
}

bool SourcePortChooser::reaches(std::uint16_t lane, std::size_t hash) const {
  return std::ranges::any_of(entries_[lane],
                             [&](std::uint16_t entry) { return classes_[hash ^ entry].size != 0; });
}

std::size_t SourcePortChooser::hash_of(std::uint32_t worker_ipv4) const {
  std::size_t hash = 0;
  for (unsigned at = 0; at < of_worker_.size(); ++at)
    hash ^= of_worker_[at][worker_ipv4 >> (24 - 8 * at) & 0xff];
  return hash;
}

/// Looks at each entry of the table at most once; usually at one for each lane.
SourcePorts SourcePortChooser::choose(std::uint32_t worker_ipv4, Rank rank) const {
  SourcePorts chosen{};
  const std::size_t of_worker = hash_of(worker_ipv4);
  for (std::size_t lane = 0; lane < entries_.size(); ++lane) {
    const std::vector<std::uint16_t>& entries = entries_[lane];
    for (std::size_t i = 0; i < entries.size() && chosen[lane] == 0; ++i) {
      const std::uint16_t entry = entries[(rank.value + i) % entries.size()];
      const Class ports = classes_[of_worker ^ of_lane_[lane] ^ entry];
      if (ports.size == 0) continue;
      const std::size_t at = ports.begin + rank.value / entries.size() % ports.size;
      chosen[lane] = static_cast<std::uint16_t>(first_source_port(lane) + lower_[at]);
    }
  }
  return chosen;
}

}  // namespace sluice::net
