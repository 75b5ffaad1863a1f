#include "worker/engine/op_request.hpp"

#include "common/protocol/geometry.hpp"

namespace sluice::worker {
namespace {

using Counts = std::span<const std::uint64_t>;
using wire::Collective;

[[noreturn]] void refuse(const std::string& call, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, call + ": " + why);
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
  const std::string call(name(request.collective));
  if (counts.size() != expected) {
    const bool pairs = request.collective == Collective::kAllToAll;
    refuse(call, std::to_string(counts.size()) + " counts, " +
                     (pairs ? "world_size^2" : "world_size") + " = " + std::to_string(expected) +
                     " expected");
  }
  request.layout = checksum(counts);
  std::vector<ElementRange> parts;
  parts.reserve(expected);
  for (const std::uint64_t count : counts) {
    const std::uint64_t begin = request.element_count;
    request.element_count += count;
    if (request.element_count < begin) refuse(call, "more than 2^64 elements");
    parts.push_back({begin, request.element_count});
  }
  return parts;
}

/// Either may be null where it has no elements. They may be the same or apart.
void check_tensors(const OpRequest& request, const std::string& call) {
  if (request.element_count == 0) return;
  const ElementRange whole{0, request.element_count};
  const ElementRange held = request.held.value_or(whole);
  const std::span<const ElementRange> wanted =
      request.wanted ? std::span<const ElementRange>(*request.wanted) : std::span(&whole, 1);
  std::uint64_t wanted_count = 0;
  for (const ElementRange& range : wanted) wanted_count += range.end - range.begin;
  const std::uint64_t held_count = held.end - held.begin;
  if ((request.input == nullptr && held_count != 0) ||
      (request.output == nullptr && wanted_count != 0))
    refuse(call, "a tensor is null");
  const std::size_t size = element_bytes(request.type);
  const std::byte* const input_end = request.input + held_count * size;
  const std::byte* const output_end = request.output + wanted_count * size;
  if (request.input < output_end && request.output < input_end) {
    // Each element must have one address. Computed as numbers: what is not held has none.
    const auto first = [&](const std::byte* tensor, std::uint64_t begin) {
      return reinterpret_cast<std::uintptr_t>(tensor) - begin * size;
    };
    if (wanted.size() != 1 ||
        first(request.input, held.begin) != first(request.output, wanted[0].begin))
      refuse(call, "input and output overlap; they must be the same or apart");
  }
}

void check_encoding(const OpRequest& request, const std::string& call) {
  if (!is_valid(request.encoding)) refuse(call, "the encoding is none of Encoding");
  if (request.is_encoded() && request.type != ElementType::kFloat32)
    refuse(call, "the encoding " + std::string(name(request.encoding)) +
                     " is one of float, not of " + std::string(name(request.type)));
  if (request.rounding_seed != 0 && !is_scaled(request.encoding))
    refuse(call, "rounding_seed is " + std::to_string(request.rounding_seed) +
                     ", and the encoding " + std::string(name(request.encoding)) +
                     " rounds to nearest; 0 expected");
}

void check_keyed(const OpRequest& request, const std::string& call, const Session& session) {
  const KeyedRequest& keyed = *request.keyed;
  if (keyed.key_bound == 0 || keyed.key_bound == kNoKey)
    refuse(call, "key_bound is " + std::to_string(keyed.key_bound) + "; 1..2^64 - 2 expected");
  if (keyed.row_elements == 0) refuse(call, "row_elements is 0; 1 at least expected");
  if (const auto why = too_long(request, session)) refuse(call, *why);
  if (!(keyed.threshold >= 0))
    refuse(call, "the threshold is " + std::to_string(keyed.threshold) + "; 0 at least expected");
  if (keyed.sums == nullptr) refuse(call, "there is no place for the sums");
  if (keyed.keys.empty()) return;
  if (keyed.rows == nullptr) refuse(call, "the values are null");
  for (std::size_t i = 1; i < keyed.keys.size(); ++i)
    if (keyed.keys[i - 1] >= keyed.keys[i])
      refuse(call, "key " + std::to_string(i) + " is " + std::to_string(keyed.keys[i]) + ", " +
                       (keyed.keys[i - 1] == keyed.keys[i] ? "as" : "less than") +
                       " the one before it; keys must rise");
  if (keyed.keys.back() >= keyed.key_bound)
    refuse(call, "the last key is " + std::to_string(keyed.keys.back()) + "; less than key_bound " +
                     std::to_string(keyed.key_bound) + " expected");
}

}  // namespace

void lay_out(OpRequest& request, RankOf me, Counts counts) {
  const std::size_t ranks = me.ranks;
  const bool is_root = me.rank == request.root;
  const std::size_t row = me.rank * ranks;  // of an all_to_all: our first part
  request.element_count = 0;
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier:
      request.element_count = counts[0];
      return;
    case Collective::kSparseAllReduce:
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

DevicePlan device_plan(const OpRequest& request, const Session& session) {
  DevicePlan plan{.type = request.tensor_type()};
  plan.block_elements = fitting_block_elements(session, request.block_elements, plan.type);
  plan.blocks = static_cast<std::uint32_t>((request.element_count + plan.block_elements - 1) /
                                           plan.block_elements);
  const ElementRange whole{0, request.element_count};
  const ElementRange held = request.held.value_or(whole);
  plan.held_begin = held.begin;
  plan.held_end = held.end;
  const std::vector<ElementRange> wanted = request.wanted.value_or(std::vector{whole});
  plan.is_wanted_in_one = wanted.size() <= 1;
  if (wanted.size() == 1) plan.wanted_begin = wanted[0].begin;
  plan.wanted_end = plan.wanted_begin;
  for (const ElementRange& range : wanted) plan.wanted_end += range.end - range.begin;
  return plan;
}

void begin_copies(OpRequest& request, const Session& session) {
  if (request.device && request.element_count == 0) request.device.reset();
  if (!request.device) return;
  request.device->plan = device_plan(request, session);
  request.device->words = request.device->tensors->begin(request.device->plan);
}

std::optional<std::string> too_long(const OpRequest& request, const Session& session) {
  if (request.keyed) {
    const KeyedRequest& keyed = *request.keyed;
    if (KeyedGeometry::make(keyed.key_bound, keyed.row_elements, request.wire_type(), session, 0))
      return std::nullopt;
    return "a row of " + std::to_string(keyed.row_elements) + " elements of " +
           std::string(name(request.type)) + " does not fit the job's packets of " +
           std::to_string(session.payload_bytes) + " bytes";
  }
  const std::uint32_t block =
      fitting_block_elements(session, request.block_elements, request.tensor_type());
  if (request.device && request.device->has_begun() && request.device->plan.block_elements != block)
    return "its tensors on a device are copied in blocks of " +
           std::to_string(request.device->plan.block_elements) + " elements, and the session has " +
           "blocks of " + std::to_string(block);
  const std::uint64_t most = max_element_count(block);
  if (request.element_count <= most) return std::nullopt;
  return std::to_string(request.element_count) + " elements in blocks of " + std::to_string(block) +
         " are more than " + std::to_string(most);
}

void check(const OpRequest& request, const std::string& call, const Session& session) {
  if (!is_valid(request.type)) refuse(call, "the element type is none of ElementType");
  if (!is_valid(request.reduction)) refuse(call, "the reduction is none of Reduction");
  if (!is_valid(request.type, request.reduction))
    refuse(call, "the reduction " + std::string(name(request.reduction)) +
                     " is one of integers, not of " + std::string(name(request.type)));
  check_encoding(request, call);
  if (request.keyed) return check_keyed(request, call, session);
  if (request.block_elements > wire::kMaxBlockElements)
    refuse(call, "block_elements is " + std::to_string(request.block_elements) + "; 1.." +
                     std::to_string(wire::kMaxBlockElements) + " expected, or 0 for the job's");
  if (const auto why = too_long(request, session)) refuse(call, *why);
  check_tensors(request, call);
  if (request.nonzero_blocks.empty()) return;
  const std::uint32_t block = fitting_block_elements(session, request.block_elements, request.type);
  const std::uint64_t blocks = (request.element_count + block - 1) / block;
  const std::uint64_t words = (blocks + 63) / 64;
  if (request.nonzero_blocks.size() < words)
    refuse(call, "nonzero_blocks has " + std::to_string(request.nonzero_blocks.size()) +
                     " words; the tensor's " + std::to_string(blocks) + " blocks need " +
                     std::to_string(words));
}

}  // namespace sluice::worker
