// Compressors: which part of a gradient is sent now, and which stays for later.
//
// The sum of gradient and residual is split: what is sent goes out, the rest is the new residual
// (error feedback; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018). A sum is rounded once
// and then moved, not computed with: the sent and the kept part together have its bits. Blocks are
// for all_reduce(), which does not send those that are zero (OmniReduce, SIGCOMM 2021, section 4);
// single elements come as sorted pairs of key and value (Ok-Topk, PPoPP 2022).
//
// The same input gives the same bits on every machine and in every call. No function here
// communicates, keeps a thread or needs a Context; calls on different tensors may run at once.
//
// For all compressors:
// - What is zero, of either sign, is not sent, though it be among the k chosen.
// - NaN and infinity are sent at once, with the whole block that they are in, beyond k and whatever
//   the threshold, so that training sees them; the residual is 0 there and stays finite.
// - k = 0 sends nothing else; k beyond the tensor sends all.
// - An empty residual means none: it counts as zeros, and what is not sent is lost.
// - Arguments that do not fit throw kInvalidArgument before anything is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/types.hpp>

namespace sluice {

/// A tensor, in blocks of which some are sent.
struct BlockCompression {
  std::span<const float> gradients = {};
  /// As many elements as `gradients`, or empty. Read and written; zeros at first.
  std::span<float> residual = {};
  /// As many elements: the sums of blocks that are sent, and +0 elsewhere. May be the very elements
  /// of `gradients`; else the three must not overlap.
  std::span<float> out = {};
  /// Written: bit b % 64 of word b / 64 tells that block b is sent, all others are 0:
  /// ReduceOptions::nonzero_blocks of an op with this block size. ceil(blocks / 64) words.
  std::span<std::uint64_t> sent_blocks = {};
  std::uint32_t block_elements = 256;  ///< 1 or more; the last block may be short
  /// What is sent is divided by it, the residual is not: the ranks of an average, say. Finite and
  /// above 0.
  float divisor = 1;
};

/// Blocks of `block_elements` (1 or more) that `elements` make.
constexpr std::uint64_t block_count(std::uint64_t elements, std::uint32_t block_elements) {
  return elements / block_elements + (elements % block_elements != 0 ? 1 : 0);
}

/// k for a share of n: ceil(ratio * n). Throws kInvalidArgument unless 0 <= ratio <= 1.
std::uint64_t share_of(double ratio, std::uint64_t n);

// Each returns the number of blocks sent. Norms are Euclidean, computed in double.

/// Sends the blocks whose norm is above `norm` (0 or more, no NaN). One pass.
std::uint64_t compress_threshold(const BlockCompression& blocks, double norm);

/// Sends the k blocks of the largest norms, of equal ones those that come first. Two passes.
std::uint64_t compress_top_k(const BlockCompression& blocks, std::uint64_t k);

/// Sends the k blocks with the largest ratio of their norm to that of their parameters, of equal
/// ones those that come first. Parameters that are all zero make the ratio the largest; where they
/// are not finite, the block is sent as if its gradients were not. `parameters` has as many
/// elements as the gradients.
std::uint64_t compress_top_k_ratio(const BlockCompression& blocks,
                                   std::span<const float> parameters, std::uint64_t k);

/// Sends k blocks by chance: the same ones on all ranks that give the same sizes, `seed` and
/// `step`, others for another step. One pass.
std::uint64_t compress_random_k(const BlockCompression& blocks, std::uint64_t k, std::uint64_t seed,
                                std::uint64_t step);

/// Elements of a tensor: keys rise, and values[i] is that of element keys[i].
struct SparseElements {
  std::vector<std::uint32_t> keys;
  std::vector<float> values;
};

/// Takes the elements whose magnitude is `magnitude` (0 or more, no NaN) or above out of gradients
/// + residual. One pass. At most 2^32 elements; `residual` has as many, or is empty. What `out`
/// held is replaced; its memory is used again.
void compress_elements(std::span<const float> gradients, std::span<float> residual, float magnitude,
                       SparseElements& out);

/// Takes the k elements of the largest magnitude, of equal ones those that come first, exactly, or
/// by the threshold of an earlier step (tau' of Ok-Topk): two passes less, and about k elements.
/// For one tensor.
class ElementTopK {
 public:
  struct Options {
    std::uint64_t k = 0;  ///< of the tensor, or of each bucket
    /// The tensor is cut into buckets of so many elements, each with its own k; 0: one bucket.
    std::uint64_t bucket_elements = 0;
    /// Calls per exact one, which the first is; 1 or more. A call that takes over twice as many as
    /// an exact one makes the next one exact, too: residuals grow from step to step.
    std::uint32_t exact_every = 1;
  };

  /// Throws kInvalidArgument if `exact_every` is 0.
  explicit ElementTopK(const Options& options);

  /// As compress_elements(). A tensor of another size than in the call before is taken exactly.
  void compress(std::span<const float> gradients, std::span<float> residual, SparseElements& out);

  void set_k(std::uint64_t k);        ///< the next call is exact if this is another k
  void forget() { next_exact_ = 0; }  ///< makes the next call exact

  /// The least magnitude that the last exact call has let through in the bucket, infinity if k is
  /// 0. Throws kInvalidArgument if there is no such bucket.
  float threshold(std::size_t bucket = 0) const;
  std::size_t buckets() const { return limits_.size(); }

 private:
  Options options_;
  std::uint32_t next_exact_ = 0;  // calls until then
  std::uint64_t elements_ = 0;
  std::vector<std::uint32_t> limits_;   // bits of the magnitude, by bucket
  std::vector<std::uint32_t> scratch_;  // magnitudes, or a histogram of them
};

/// Chooses k so that the union of the ranks' blocks (or elements) takes a given number of bytes.
///
/// A union's growth is described by how many ranks with independent choices would have it: 1 if all
/// ranks choose alike, `ranks` if their choices are independent, more if they avoid each other. It
/// begins with `ranks` and follows what is measured. Ranks that give the same numbers get the same
/// k, if their C libraries compute the same logarithms.
class UnionTarget {
 public:
  struct Options {
    std::uint32_t ranks = 1;       ///< 1 or more
    std::uint64_t units = 0;       ///< blocks, or elements, of the tensor
    std::uint64_t unit_bytes = 0;  ///< of one on the wire, headers included; 1 or more
    std::uint64_t bytes = 0;       ///< that the union should take
  };

  /// Throws kInvalidArgument if `ranks` or `unit_bytes` is 0.
  explicit UnionTarget(const Options& options);

  /// 0 only if not one unit fits into the bytes, or there is none; at most `units`.
  std::uint64_t k() const;

  /// A step's sizes: of what this rank has sent, the same on all ranks or their mean, and of the
  /// union. Throws kInvalidArgument unless own <= in_union <= units.
  void measured(std::uint64_t own, std::uint64_t in_union);

  double independent_ranks() const { return independent_ranks_; }  ///< 1 or more

 private:
  Options options_;
  double independent_ranks_;
};

}  // namespace sluice
