#include "bindings/torch/csrc/layout_tag.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <regex>
#include <vector>

#include "bindings/torch/csrc/elements.hpp"

namespace sluice_torch {
namespace {

constexpr std::array kCalls = {"all_reduce",
                               "all_reduce_encoded",
                               "all_reduce_coalesced",
                               "reduce",
                               "broadcast",
                               "reduce_scatter",
                               "reduce_scatter_tensor",
                               "gather",
                               "scatter",
                               "all_gather",
                               "all_gather_into_tensor",
                               "all_gather_coalesced",
                               "all_to_all",
                               "all_to_all_single",
                               "sparse all_reduce",
                               "ok_top_k",
                               "all_gather_into_tensor_coalesced",
                               "reduce_scatter_tensor_coalesced"};

/// The parts of a tag, from the lowest bits.
struct Layout {
  static constexpr int kCallBits = 6;
  static constexpr int kDtypeBits = 7;
  static constexpr int kDimensionBits = 4;  // each of an order
  static constexpr std::size_t kOrderMax = 6;
  static constexpr int kSizesBits = 23;

  std::uint64_t call = 0;  ///< in kCalls, from 1
  std::uint64_t dtype = 0;
  std::uint64_t order = 0;  ///< dimensions by stride, the largest first, from 1; 0: row by row
  std::uint64_t sizes = 0;  ///< checksum; 0 where only their product counts

  std::uint64_t tag() const {
    return call | dtype << kCallBits | order << (kCallBits + kDtypeBits) |
           sizes << (64 - kSizesBits);
  }

  static Layout of(std::uint64_t tag) {
    const auto bits = [&](int begin, int count) { return tag >> begin & ((1ULL << count) - 1); };
    constexpr int kOrderBegin = kCallBits + kDtypeBits;
    return {.call = bits(0, kCallBits),
            .dtype = bits(kCallBits, kDtypeBits),
            .order = bits(kOrderBegin, 64 - kSizesBits - kOrderBegin),
            .sizes = bits(64 - kSizesBits, kSizesBits)};
  }

  std::string text() const {
    std::string text =
        std::string(kCalls[call - 1]) + " of " + dtype_name(static_cast<at::ScalarType>(dtype));
    for (std::uint64_t rest = order; rest != 0; rest >>= kDimensionBits)
      text += (rest == order ? ", dimensions by stride " : ", ") +
              std::to_string((rest & ((1U << kDimensionBits) - 1)) - 1);
    return sizes == 0 ? text : text + " (checksum of sizes " + std::to_string(sizes) + ")";
  }
};

/// FNV-1a's, over words.
class Checksum {
 public:
  void add(at::IntArrayRef words) {
    for (const std::int64_t word : words)
      hash_ = (hash_ ^ static_cast<std::uint64_t>(word)) * 0x100'0000'01B3;
  }
  std::uint64_t sum() const {
    const std::uint64_t folded = (hash_ ^ hash_ >> 32) & ((1U << Layout::kSizesBits) - 1);
    return std::max<std::uint64_t>(folded, 1);
  }

 private:
  std::uint64_t hash_ = 0xCBF2'9CE4'8422'2325;
};

/// In how many dimensions rows are numbered.
void note_sparse(Layout& layout, const at::Tensor& tensor) {
  Checksum sizes;
  sizes.add(tensor.sizes());
  sizes.add(tensor.sparse_dim());
  layout.sizes = sizes.sum();
}

void note_order(Layout& layout, const at::Tensor& tensor) {
  Checksum sizes;
  sizes.add(tensor.sizes());
  sizes.add(tensor.strides());
  layout.sizes = sizes.sum();
  std::vector<std::size_t> order(static_cast<std::size_t>(tensor.dim()));
  if (order.size() > Layout::kOrderMax) return;
  std::iota(order.begin(), order.end(), 0);
  const auto stride = [&](std::size_t dimension) { return tensor.strides()[dimension]; };
  std::ranges::stable_sort(order, std::ranges::greater(), stride);
  for (std::size_t i = 0; i < order.size(); ++i)
    layout.order |= (order[i] + 1) << (i * Layout::kDimensionBits);
}

std::string text_of(const std::string& tag) {
  const Layout layout = Layout::of(std::stoull(tag));
  const bool is_layout = layout.call != 0 && layout.call <= kCalls.size();
  return is_layout ? layout.text() : "tag " + tag;
}

}  // namespace

std::uint64_t tag_of(const std::string& call, const at::Tensor& tensor) {
  const auto known = std::ranges::find(kCalls, call);
  TORCH_INTERNAL_ASSERT(known != kCalls.end(), call);
  Layout layout{.call = static_cast<std::uint64_t>(known - kCalls.begin()) + 1,
                .dtype = static_cast<std::uint64_t>(tensor.scalar_type())};
  if (tensor.is_sparse())
    note_sparse(layout, tensor);
  else if (!tensor.is_contiguous() && tensor.is_non_overlapping_and_dense())
    note_order(layout, tensor);
  return layout.tag();
}

std::string with_layouts(const std::string& error) {
  static const std::regex kTags("has tag ([0-9]+)(, rank [0-9]+ has )([0-9]+)");
  std::smatch found;
  if (!std::regex_search(error, found, kTags)) return error;
  return found.prefix().str() + "has " + text_of(found[1]) + found[2].str() + text_of(found[3]) +
         found.suffix().str();
}

}  // namespace sluice_torch
