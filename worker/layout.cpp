#include "worker/layout.hpp"

#include <string>
#include <vector>

namespace sluice::worker {
namespace {

using Counts = std::span<const std::uint64_t>;
using wire::Collective;

[[noreturn]] void refuse(const OpRequest& request, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, std::string(name(request.collective)) + ": " + why);
}

/// FNV-1a, folded: enough to notice ranks that cut the same tensor in different ways.
std::uint16_t checksum(Counts counts) {
  std::uint64_t hash = 0xCBF2'9CE4'8422'2325;
  for (const std::uint64_t count : counts)
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ ((count >> shift) & 0xFF)) * 0x100'0000'01B3;
  return static_cast<std::uint16_t>(hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48));
}

/// The parts, which make up the tensor.
std::vector<ElementRange> cut(OpRequest& request, Counts counts, std::size_t expected) {
  if (counts.size() != expected) {
    const bool pairs = request.collective == Collective::kAllToAll;
    refuse(request, std::to_string(counts.size()) + " counts, " +
                        (pairs ? "world_size^2" : "world_size") + " = " + std::to_string(expected) +
                        " expected");
  }
  request.layout = checksum(counts);
  std::vector<ElementRange> parts;
  parts.reserve(expected);
  for (const std::uint64_t count : counts) {
    const std::uint64_t begin = request.element_count;
    request.element_count += count;
    if (request.element_count < begin) refuse(request, "more than 2^64 elements");
    parts.push_back({begin, request.element_count});
  }
  return parts;
}

}  // namespace

void lay_out(OpRequest& request, Place me, Counts counts) {
  const std::size_t ranks = me.ranks;
  const bool is_root = me.rank == request.root;
  const std::size_t row = me.rank * ranks;  // of an all_to_all: our first part
  request.element_count = 0;
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier:
      request.element_count = counts[0];
      return;
    case Collective::kReduce:
      request.element_count = counts[0];
      if (!is_root) request.wanted.emplace();
      return;
    case Collective::kBroadcast:
      request.element_count = counts[0];
      if (is_root)
        request.wanted.emplace();  // it has the tensor, which may be read-only
      else
        request.held = ElementRange{};
      return;
    case Collective::kReduceScatter:
      request.wanted = {cut(request, counts, ranks)[me.rank]};
      return;
    case Collective::kAllGather:
      request.held = cut(request, counts, ranks)[me.rank];
      return;
    case Collective::kGather:
      request.held = cut(request, counts, ranks)[me.rank];
      if (!is_root) request.wanted.emplace();
      return;
    case Collective::kScatter:
      request.wanted = {cut(request, counts, ranks)[me.rank]};
      if (!is_root) request.held = ElementRange{};
      return;
    case Collective::kAllToAll: {
      const std::vector<ElementRange> parts = cut(request, counts, ranks * ranks);
      request.held = {parts[row].begin, parts[row + ranks - 1].end};
      request.wanted.emplace();
      for (std::size_t from = 0; from < ranks; ++from)
        request.wanted->push_back(parts[from * ranks + me.rank]);
      return;
    }
  }
}

}  // namespace sluice::worker
