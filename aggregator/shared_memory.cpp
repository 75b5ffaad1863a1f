#include "aggregator/shared_memory.hpp"

#include <algorithm>

#include "common/base/limits.hpp"

namespace sluice::aggregator {
namespace {

bool is_read(const std::shared_ptr<const SharedBlocks::Region>& region) {
  return region.use_count() > 1;
}

}  // namespace

SharedBlocks::SharedBlocks(const Session& session, SharedMemory& memory,
                           std::vector<std::uint64_t> slots, SharedBytes<std::byte> results)
    : memory_(memory), keeps_results_(std::move(results.keeps)) {
  complete_ = results.bytes.size() >= ResultSlots<std::byte>::bytes_for(session);
  if (complete_) results_ = ResultSlots<std::byte>(results.bytes, session);
  for (const std::uint64_t id : slots) {
    OfRank& rank = ranks_.emplace_back(OfRank{.slots_id = id, .keeps_slots = memory.of_worker(id)});
    const auto bytes = rank.keeps_slots.bytes;
    const bool fits = bytes.size() >= ContributionSlots<const std::byte>::bytes_for(session);
    if (fits) rank.slots = ContributionSlots<const std::byte>(bytes, session);
    complete_ &= fits;
  }
}

std::shared_ptr<const SharedBlocks::Region> SharedBlocks::tensors(Rank w, std::uint64_t id) {
  OfRank& rank = ranks_[w.value];
  const auto known = std::find_if(rank.tensors.begin(), rank.tensors.end(),
                                  [&](const auto& each) { return each.first == id; });
  if (known != rank.tensors.end()) return known->second;
  Region region = memory_.tensors(id, rank.slots_id);
  if (!region) return nullptr;
  if (rank.tensors.size() >= limits::kRememberedRegions) {
    const auto idle = std::find_if(rank.tensors.begin(), rank.tensors.end(),
                                   [](const auto& each) { return !is_read(each.second); });
    if (idle != rank.tensors.end()) rank.tensors.erase(idle);
  }
  return rank.tensors.emplace_back(id, std::make_shared<const Region>(std::move(region))).second;
}

bool SharedBlocks::let_go() {
  bool all = true;
  for (OfRank& rank : ranks_)
    std::erase_if(rank.tensors, [&](const auto& each) {
      const bool is_gone = !memory_.tensors(each.first, rank.slots_id);
      const bool goes = is_gone && !is_read(each.second);
      all &= goes == is_gone;
      return goes;
    });
  return all;
}

bool SharedBlocks::has_ended_for_some() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const OfRank& rank) { return rank.slots.has_ended(); });
}

std::optional<Rank> SharedBlocks::lost_rank() const {
  // A handler says so before there are zeros to read, on this thread or on another lane's.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto is_lost = [](const Region& region) {
    return region.lost != nullptr && region.lost->load(std::memory_order_relaxed);
  };
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const OfRank& rank = ranks_[r];
    if (is_lost(rank.keeps_slots) ||
        std::any_of(rank.tensors.begin(), rank.tensors.end(),
                    [&](const auto& each) { return is_lost(*each.second); }))
      return Rank{static_cast<std::uint16_t>(r)};
  }
  return std::nullopt;
}

}  // namespace sluice::aggregator
