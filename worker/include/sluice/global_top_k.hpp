// The k largest elements of a sum over the ranks, step by step: Ok-Topk (Li and Hoefler, PPoPP
// 2022) with an aggregator in the place of its splitting, balancing and gathering.
//
//   sluice::GlobalTopK top_k({.k = gradients.size() / 100});
//   std::vector<float> residual(gradients.size());
//   for (;;) {
//     ...
//     top_k.all_reduce(job, gradients, residual, gradients);  // zero but for about k elements
//   }
//
// A step takes the k largest elements of gradients + residual on each rank, sums them as pairs, and
// the aggregators deliver the sums that reach a global threshold. What a rank did not send stays in
// its residual, and so does what it sent to a sum that was not delivered; of the rest the residual
// becomes 0. So the gradients of all steps and ranks are what was delivered and what the
// residuals hold. Apart from the sums no message is sent.
//
// The next threshold follows from what all ranks know alike, the sums delivered and how many were
// rejected (SparseWork::rejected()), and by arithmetic that is the same on every machine: all ranks
// have the same. The first is 0: the union of the ranks' elements is delivered, up to k per rank.
// Afterwards about k are: between k/2 and 2k where the gradients' distribution is steady and the
// residuals have grown, which takes some n / k steps for n elements; more until then. See
// docs/sparsity.md.
//
// Defined for each input:
// - NaN and infinity are sent at once, beyond k, and delivered whatever the threshold; no residual
//   keeps them, unless the op fails. They do not count as results where the threshold is computed.
// - k = 0 sends nothing else; with k of all elements or more every sum is delivered, and the
//   residual is 0. Zeros are never sent; a step without anything to send keeps the threshold.
// - Of equal elements a rank takes those that come first; equal sums are delivered all or none.
// - An empty residual means none: what is not sent, or not delivered, is lost.
// - If the op fails on this rank, or cannot begin, its residual becomes gradients + residual:
//   nothing is lost, and the gradients must not be given again. The threshold stays. Where other
//   ranks' op did not fail they have another one: then all ranks must call forget(), else the next
//   op fails with kOpMismatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sluice/compress.hpp>
#include <sluice/sluice.hpp>

namespace sluice {

/// Of one tensor; not for two threads at once. All ranks take the same steps. Options marked (all)
/// must be equal on all ranks.
class GlobalTopK {
 public:
  struct Options {
    std::uint64_t k = 0;  ///< (all) elements that a rank sends, and that should be delivered
    /// Steps per one in which the k largest elements of this rank are found exactly: see
    /// ElementTopK::Options. More than 1 spares time and sends more.
    std::uint32_t exact_every = 1;
    Reduction reduction = Reduction::kSum;            ///< (all) kSum or kAverage
    std::size_t result_bytes = std::size_t{1} << 30;  ///< as SparseOptions::result_bytes
    std::uint64_t tag = 0;                            ///< (all) as SparseOptions::tag
  };

  /// Throws kInvalidArgument if `exact_every` is 0, or for another reduction.
  explicit GlobalTopK(const Options& options);
  /// Waits for a step under way, whose residual stays without what was sent.
  ~GlobalTopK();
  GlobalTopK(const GlobalTopK&) = delete;
  GlobalTopK& operator=(const GlobalTopK&) = delete;

  /// Begins a step. `gradients`, at most 2^32 elements, (all) as many, are not needed any more when
  /// this returns. `residual` has as many elements, or none; zeros at first; it belongs to the
  /// step until finish(). They do not overlap. The work returned is for waiting; finish() must be
  /// called all the same. Throws kInvalidArgument for other sizes, or with a step under way, and as
  /// Communicator::all_reduce().
  SparseWork start(Communicator& job, std::span<const float> gradients, std::span<float> residual);

  /// Waits for the end of the step and sets residual and threshold. The work returned has the keys
  /// and sums, and owns them. Throws the op's Error, and kInvalidArgument without a step under way.
  SparseWork finish();
  /// The same into a tensor: +0 but for the sums. As many elements as the gradients, which it may
  /// be, without overlapping the residual; else this throws kInvalidArgument, and the step goes on.
  SparseWork finish(std::span<float> out);

  /// A whole step.
  SparseWork all_reduce(Communicator& job, std::span<const float> gradients,
                        std::span<float> residual, std::span<float> out);

  /// The next step's: only sums of at least this magnitude are delivered.
  float threshold() const { return threshold_; }
  /// How many elements this rank sent in the last step.
  std::uint64_t sent() const { return sent_.keys.size(); }

  /// (all) From the next step on. Throws kInvalidArgument with a step under way.
  void set_k(std::uint64_t k);
  /// (all) The next step begins anew, with threshold 0; residuals stay. Throws as set_k().
  void forget();

 private:
  void check_idle(const char* call) const;
  void keep_all_but(std::span<const std::uint64_t> delivered);

  Options options_;
  ElementTopK selection_;
  float threshold_ = 0;
  SparseElements sent_;              // by this rank in the last step
  std::vector<std::uint64_t> keys_;  // the same keys as pairs have them
  std::span<float> residual_ = {};   // of the step under way
  std::uint64_t elements_ = 0;
  SparseWork work_;  // valid: a step is under way
};

}  // namespace sluice
