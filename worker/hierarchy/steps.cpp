#include "worker/hierarchy/steps.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/protocol/geometry.hpp"
#include "worker/memory/arena.hpp"

namespace sluice::worker::hierarchy {
namespace {

using wire::Collective;

/// Marks the tag of an average, so that a host that asks for a sum disagrees.
constexpr std::uint16_t kOfAverages = 1;
/// Marks how the tensor is cut, so that a host that cuts it in another way disagrees.
std::uint16_t layout_of(const Chunk& chunk) {
  static_assert(kMaxChunks <= 8);
  return static_cast<std::uint16_t>(chunk.number << 4 | (chunk.of - 1) << 1);
}

std::uint64_t length(const ElementRange& range) {
  return range.end - range.begin;
}

std::uint64_t length(const std::vector<ElementRange>& ranges) {
  std::uint64_t elements = 0;
  for (const ElementRange& range : ranges) elements += length(range);
  return elements;
}

/// The intersection; empty if there is none.
ElementRange common(const ElementRange& a, const ElementRange& b) {
  const ElementRange both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : ElementRange{};
}

std::vector<ElementRange> common(const std::vector<ElementRange>& ranges, const ElementRange& b) {
  std::vector<ElementRange> all;
  for (const ElementRange& range : ranges)
    if (const ElementRange both = common(range, b); length(both) != 0) all.push_back(both);
  return all;
}

/// The smallest range that contains both.
ElementRange hull(const ElementRange& a, const ElementRange& b) {
  if (length(a) == 0) return b;
  if (length(b) == 0) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// The same elements in as few ranges as possible.
std::vector<ElementRange> merged(std::vector<ElementRange> ranges) {
  std::erase_if(ranges, [](const ElementRange& range) { return length(range) == 0; });
  std::ranges::sort(ranges, {}, &ElementRange::begin);
  std::vector<ElementRange> all;
  for (const ElementRange& range : ranges)
    if (all.empty() || all.back().end < range.begin)
      all.push_back(range);
    else
      all.back().end = std::max(all.back().end, range.end);
  return all;
}

/// Where `range`, which lies in one of `ranges`, begins and ends in a tensor that consists of these
/// ranges alone, one behind the other.
ElementRange packed(const std::vector<ElementRange>& ranges, const ElementRange& range) {
  std::uint64_t before = 0;
  for (const ElementRange& each : ranges) {
    if (range.begin >= each.begin && range.end <= each.end)
      return {before + (range.begin - each.begin), before + (range.end - each.begin)};
    before += length(each);
  }
  return {};
}

/// One part of `range` if it is divided into so many, each of about as many blocks. The range
/// begins with a block.
ElementRange part_of(const ElementRange& range, std::uint32_t block_elements, std::uint64_t number,
                     std::uint64_t parts) {
  const std::uint64_t elements = length(range);
  const std::uint64_t blocks = (elements + block_elements - 1) / block_elements;
  const auto begin_of = [&](std::uint64_t part) {
    const std::uint64_t block = blocks / parts * part + std::min(part, blocks % parts);
    return range.begin + std::min(block * block_elements, elements);
  };
  return {begin_of(number), begin_of(number + 1)};
}

}  // namespace

bool sums_by_hosts(const OpRequest& request) {
  return request.reduction != Reduction::kAverage || is_float(request.type);
}

std::uint32_t chunks_of(const OpRequest& request, const Placement& placement,
                        std::uint64_t min_chunk_of_rail) {
  if (!sums_by_hosts(request)) return 1;
  const std::uint64_t of_rail =
      request.element_count / placement.rails() * element_bytes(request.type);
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(of_rail / min_chunk_of_rail, 1, kMaxChunks));
}

void Steps::Deallocate::operator()(std::byte* memory) const {
  memory::Arena::of_process().deallocate(memory);
}

Steps::Memory Steps::allocate(std::uint64_t elements) const {
  if (elements == 0) return nullptr;
  return Memory(memory::Arena::of_process().allocate(elements * element_bytes_));
}

Steps::HostPart Steps::of_host(const OpRequest& request, std::span<const std::uint64_t> counts,
                               std::span<const Rank> ranks, std::uint16_t of_job,
                               const ElementRange& chunk) {
  const ElementRange whole{0, request.element_count};
  HostPart part;
  for (const Rank rank : ranks) {
    OpRequest of_rank;
    of_rank.collective = request.collective;
    of_rank.root = request.root;
    lay_out(of_rank, {rank.value, of_job}, counts);
    part.held = hull(part.held, of_rank.held.value_or(whole));
    Ranges wanted = common(of_rank.wanted.value_or(Ranges{whole}), chunk);
    part.wanted.insert(part.wanted.end(), wanted.begin(), wanted.end());
    part.of_rank.push_back({of_rank.held, std::move(wanted)});
  }
  part.wanted = merged(std::move(part.wanted));
  return part;
}

void Steps::HostPart::clear() {
  held = {};
  wanted.clear();
  for (host::Part& part : of_rank) part = {.held = ElementRange{}, .wanted = Ranges{}};
}

Steps::Steps(const OpRequest& request, std::span<const std::uint64_t> counts,
             const Placement& placement, Rank self, const Session& session, const Chunk& chunk,
             std::shared_ptr<host::PairPool> pairs)
    : element_bytes_(element_bytes(request.type)), pair_pool_(std::move(pairs)) {
  if (request.keyed) {
    begin_pairs(request, placement, self, session);
    return;
  }
  const std::uint16_t rail = placement.local_rank_of(self);
  const std::uint16_t rails = placement.rails();
  const std::uint32_t block_elements =
      fitting_block_elements(session, request.block_elements, request.tensor_type());
  const ElementRange whole{0, request.element_count};
  const ElementRange elements = part_of(whole, block_elements, chunk.number, chunk.of);
  HostPart ours = of_host(request, counts, placement.ranks_of(placement.host_of(self)),
                          placement.ranks(), elements);
  if (!sums_by_hosts(request)) ours.clear();
  const auto share = [&](std::uint16_t number) {
    return number < rails ? part_of(elements, block_elements, number, rails) : ElementRange{};
  };
  blocks_ = (length(share(rail)) + block_elements - 1) / block_elements;
  const ElementRange held = common(ours.held, share(rail));
  const Ranges wanted = common(ours.wanted, share(rail));

  // only what travels is encoded
  gather_.request = spread_.request = request;
  for (OfHost* const step : {&gather_, &spread_}) {
    step->request.encoding = Encoding::kNone;
    step->request.encoding_between_hosts = request.encoding;
    step->request.device.reset();
  }
  gather_.parts = ours.of_rank;
  for (std::uint16_t peer = 0; peer < gather_.parts.size(); ++peer) {
    const ElementRange of_peer = common(ours.held, share(peer));
    gather_.parts[peer].wanted.emplace();
    if (length(of_peer) != 0) gather_.parts[peer].wanted->push_back(of_peer);
  }
  gather_.request.wanted = gather_.parts[rail].wanted;

  OpRequest& spread = spread_.request;
  if (spread.collective != Collective::kBarrier) spread.collective = Collective::kAllGather;
  spread.reduction = Reduction::kSum;
  spread.nonzero_blocks = {};
  spread.element_count = length(ours.wanted);
  // What we want of the chunk lies behind what we want of the chunks before it.
  const Ranges before = common(request.wanted.value_or(Ranges{whole}), {0, elements.begin});
  if (spread.output != nullptr) spread.output += length(before) * element_bytes_;
  for (std::uint16_t peer = 0; peer < ours.of_rank.size(); ++peer) {
    const Ranges of_peer = common(ours.wanted, share(peer));
    host::Part part;
    part.held = of_peer.empty() ? ElementRange{}
                                : hull(packed(ours.wanted, of_peer.front()),
                                       packed(ours.wanted, of_peer.back()));
    part.wanted.emplace();
    for (const ElementRange& range : ours.of_rank[peer].wanted.value())
      part.wanted->push_back(packed(ours.wanted, range));
    spread_.parts.push_back(std::move(part));
  }
  spread.held = spread_.parts[rail].held;
  spread.wanted = spread_.parts[rail].wanted;

  if (rail < rails) {
    between_ = between_hosts(request);
    between_->layout ^= layout_of(chunk);
    between_->held = held;
    between_->wanted = wanted;
    between_->nonzero_blocks = {};
    between_->device.reset();
  }
  place(request, held, wanted);
  const auto holds_all = [](const host::Part& part) { return !part.held; };
  if (length(elements) != 0 && std::ranges::all_of(ours.of_rank, holds_all))
    find_blocks(request, {.elements = block_elements,
                          .chunk = elements,
                          .share = share(rail),
                          .is_spread = ours.wanted == Ranges{elements},
                          .is_in_place = !request.wanted && request.input == request.output});
}

/// The first step finds the blocks that the host has. The second step reads no others, and adds the
/// blocks that come from other hosts.
void Steps::find_blocks(const OpRequest& request, Found found) {
  found_ = std::make_unique<Found>(std::move(found));
  const std::uint64_t each = found_->elements, blocks = (request.element_count + each - 1) / each;
  found_->blocks.nonzero.resize((blocks + 63) / 64);
  gather_.request.found_blocks = &found_->blocks;
  gather_.request.zeros_are_there = found_->is_in_place;
  if (!between_) return;
  between_->searched_blocks = found_->blocks.nonzero;
  between_->found_blocks = &found_->blocks;
}

/// The hosts have divided already, as their sums could be too large for 16 bits.
OpRequest Steps::between_hosts(OpRequest request) {
  if (request.reduction == Reduction::kAverage && sums_by_hosts(request)) {
    request.reduction = Reduction::kSum;
    request.layout ^= kOfAverages;
  }
  return request;
}

/// Begins a sum of pairs. In the gather and spread steps ranks send only pairs of their own.
void Steps::begin_pairs(OpRequest request, const Placement& placement, Rank self,
                        const Session& session) {
  if (!sums_by_hosts(request)) {
    request.keyed->keys = {};
    request.keyed->sums = &no_sums_;
  }
  const std::uint16_t rail = placement.local_rank_of(self), rails = placement.rails();
  pairs_ =
      std::make_unique<Pairs>(request, session,
                              host::KeyedRanks{.all = placement.ranks_of(placement.host_of(self)),
                                               .self = rail,
                                               .ranges = rails,
                                               .of_job = placement.ranks(),
                                               .memory = pair_pool_});
  if (rail >= rails) return;
  between_ = between_hosts(request);
  between_->keyed->keys = {};
  // Each rank's bound decides whether the sums are too many, once they are all there.
  between_->keyed->result_bytes = std::numeric_limits<std::size_t>::max();
  between_->keyed->sums = &pairs_->sums;
}

void Steps::end_gather() {
  if (!pairs_ || !between_) return;
  pairs_->range = pairs_->merge.take_range();
  between_->keyed->keys = pairs_->range.keys();
  between_->keyed->rows = pairs_->range.pairs.rows();
}

/// Sets which blocks of our share are not zero everywhere, and whether our tensor holds zeros in
/// place of the others.
void Steps::tell_blocks() {
  if (!found_->is_spread) return;
  OpRequest& spread = spread_.request;
  spread.zeros_are_there = found_->is_in_place && !found_->blocks.has_negative_zero;
  if (length(found_->share) == 0) return;
  const std::uint64_t each = found_->elements, first = found_->chunk.begin / each;
  found_->to_spread.resize(length(found_->chunk) / each / 64 + 1);
  for (std::uint64_t b = found_->share.begin / each; b <= (found_->share.end - 1) / each; ++b)
    if ((found_->blocks.nonzero[b / 64] >> (b % 64) & 1) != 0)
      found_->to_spread[(b - first) / 64] |= std::uint64_t{1} << ((b - first) % 64);
  spread.nonzero_blocks = found_->to_spread;
}

void Steps::end_between() {
  if (found_) tell_blocks();
  if (!pairs_ || !between_) return;
  pairs_->range = {};
  KeyedSums& sums = pairs_->sums;
  host::KeyedRange range{.pairs = {pair_pool_, sums.size(), sums.row_bytes()},
                         .size = sums.size(),
                         .rejected = sums.rejected};
  sums.merge({range.pairs.keys(), range.size}, {range.pairs.rows(), range.size * sums.row_bytes()});
  sums = {};
  pairs_->spread.begin_with(std::move(range));
}

/// Finds a place for our share: in the output, if the caller wants the whole tensor.
void Steps::place(const OpRequest& request, const ElementRange& held, const Ranges& wanted) {
  const bool holds_what_it_wants = wanted == Ranges{held};
  const bool is_in_output = !request.wanted && holds_what_it_wants;
  std::byte* sums = nullptr;
  std::byte* results = nullptr;
  if (is_in_output) {
    sums = results = request.output + held.begin * element_bytes_;
  } else {
    held_ = allocate(length(held));
    sums = results = held_.get();
    if (!holds_what_it_wants) {
      wanted_ = allocate(length(wanted));
      results = wanted_.get();
    }
  }
  gather_.request.output = sums;
  if (between_) {
    between_->input = sums;
    between_->output = results;
  }
  spread_.request.input = results;
}

void Steps::set_timeout(const OpTimeout& timeout) {
  gather_.request.timeout = spread_.request.timeout = timeout;
  if (between_) between_->timeout = timeout;
  if (!pairs_) return;
  pairs_->merge.set_timeout(timeout);
  pairs_->spread.set_timeout(timeout);
}

}  // namespace sluice::worker::hierarchy
