#include <algorithm>
#include <string>
#include <utility>

#include <sluice/global_top_k.hpp>

#include "worker/compress/global_threshold.hpp"
#include "worker/compress/tensor_checks.hpp"

namespace sluice {
namespace {

void check_out(const char* call, std::span<const float> out, std::uint64_t elements,
               std::span<const float> residual) {
  if (out.size() != elements) refuse(call, quantity("out", out.size(), elements));
  if (overlap(out, residual)) refuse(call, "residual and out overlap");
}

}  // namespace

GlobalTopK::GlobalTopK(const Options& options)
    : options_(options), selection_({.k = options.k, .exact_every = options.exact_every}) {
  if (options.reduction != Reduction::kSum && options.reduction != Reduction::kAverage)
    refuse("GlobalTopK",
           "reduction is " + std::string(name(options.reduction)) + "; sum or average expected");
}

GlobalTopK::~GlobalTopK() {
  if (!work_.valid()) return;
  try {
    work_.wait();
  } catch (const Error&) {  // the owner of the work gets the error
  }
}

void GlobalTopK::check_idle(const char* call) const {
  if (work_.valid())
    refuse(std::string("GlobalTopK::") + call, "a step is under way; finish() it first");
}

SparseWork GlobalTopK::start(Communicator& job, std::span<const float> gradients,
                             std::span<float> residual) {
  check_idle("start");
  selection_.compress(gradients, residual, sent_);
  residual_ = residual;
  elements_ = gradients.size();
  try {
    keys_.assign(sent_.keys.begin(), sent_.keys.end());
    work_ = job.all_reduce(SparseTensor{.keys = keys_, .values = sent_.values.data()},
                           std::max<std::uint64_t>(elements_, 1),
                           {.reduction = options_.reduction,
                            .threshold = threshold_,
                            .result_bytes = options_.result_bytes,
                            .tag = options_.tag});
  } catch (...) {
    keep_all_but({});
    throw;
  }
  return work_;
}

/// What this rank sent becomes residual again, except for these keys.
void GlobalTopK::keep_all_but(std::span<const std::uint64_t> delivered) {
  if (residual_.empty()) return;
  auto next = delivered.begin();
  for (std::size_t i = 0; i < sent_.keys.size(); ++i) {
    const std::uint32_t key = sent_.keys[i];
    while (next != delivered.end() && *next < key) ++next;
    if (next == delivered.end() || *next != key) residual_[key] = sent_.values[i];
  }
}

SparseWork GlobalTopK::finish() {
  if (!work_.valid()) refuse("GlobalTopK::finish", "no step is under way");
  const SparseWork work = std::exchange(work_, {});
  try {
    work.wait();
  } catch (...) {
    keep_all_but({});
    throw;
  }
  keep_all_but(work.keys());
  threshold_ = next_threshold(threshold_, options_.k, work.values<float>(), work.rejected());
  return work;
}

SparseWork GlobalTopK::finish(std::span<float> out) {
  if (work_.valid()) check_out("GlobalTopK::finish", out, elements_, residual_);
  SparseWork work = finish();
  const auto keys = work.keys();
  const auto sums = work.values<float>();
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t i = 0; i < keys.size(); ++i) out[keys[i]] = sums[i];
  return work;
}

SparseWork GlobalTopK::all_reduce(Communicator& job, std::span<const float> gradients,
                                  std::span<float> residual, std::span<float> out) {
  check_out("GlobalTopK::all_reduce", out, gradients.size(), residual);
  start(job, gradients, residual);
  return finish(out);
}

void GlobalTopK::set_k(std::uint64_t k) {
  check_idle("set_k");
  options_.k = k;
  selection_.set_k(k);
}

void GlobalTopK::forget() {
  check_idle("forget");
  threshold_ = 0;
  selection_.forget();
}

}  // namespace sluice
