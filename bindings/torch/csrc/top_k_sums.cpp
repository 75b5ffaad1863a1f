#include "bindings/torch/csrc/top_k_sums.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "bindings/torch/csrc/checks.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/layout_tag.hpp"

namespace sluice_torch {
namespace {

constexpr const char* kTopKCall = "ok_top_k";

std::span<float> elements_of(const at::Tensor& tensor) {
  if (tensor.numel() > std::int64_t{1} << 32)
    refuse(kTopKCall, described(tensor) + "; at most 2^32 elements expected");
  return cpu_floats(kTopKCall, tensor);
}

sluice::GlobalTopK::Options options_of(const at::Tensor& tensor, std::uint64_t k,
                                       std::uint32_t exact_every) {
  elements_of(tensor);  // checks it
  if (exact_every == 0) refuse(kTopKCall, "exact_every is 0; 1 or more expected");
  return {.k = k,
          .exact_every = exact_every,
          .reduction = sluice::Reduction::kAverage,
          .result_bytes = std::numeric_limits<std::size_t>::max(),
          .tag = tag_of(kTopKCall, tensor)};
}

}  // namespace

/// Of one op. The op drops it when it is over, or has not begun.
class TopKSums::Step {
 public:
  Step(std::shared_ptr<TopKSums> sums, const at::Tensor& gradients)
      : sums_(std::move(sums)), gradients_(gradients) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  ~Step() {
    const bool is_over = !work_.valid() || work_.done();  // else this process was forked meanwhile
    if (is_over) give_up();
  }

  sluice::Work start(sluice::Communicator& job) {
    has_begun_ = true;
    return work_ = sums_->top_k_.start(job, elements_of(gradients_), elements_of(sums_->residual_));
  }

  void finish() {
    sums_->delivered_ = sums_->top_k_.finish(elements_of(gradients_)).size();
    end();
  }

  /// Nothing that was not delivered is lost.
  void give_up() {
    if (has_ended_) return;
    if (!has_begun_) {
      const at::NoGradGuard no_grad;
      at::Tensor(sums_->residual_).add_(gradients_);
    } else if (work_.valid()) {
      try {
        sums_->top_k_.finish();
      } catch (const sluice::Error&) {  // the op's, which whoever waits for it is told
      }
    }
    end();
  }

 private:
  void end() {
    has_ended_ = true;
    work_ = {};
    sums_->under_way_ = false;
  }

  const std::shared_ptr<TopKSums> sums_;
  const at::Tensor gradients_;
  sluice::SparseWork work_;
  bool has_begun_ = false;  // else the gradients are not in the residual
  bool has_ended_ = false;
};

TopKSums::TopKSums(const at::Tensor& residual, std::uint64_t k, std::uint32_t exact_every)
    : residual_(residual), top_k_(options_of(residual, k, exact_every)) {}

Operation::Request TopKSums::step(const at::Tensor& gradients) {
  elements_of(gradients);  // checks them
  check_elements(kTopKCall, "the gradients' tensor", gradients, residual_.numel());
  if (under_way_.exchange(true))
    refuse(kTopKCall, "the step before of " + described(gradients) + " is still under way");
  const auto step = std::make_shared<Step>(shared_from_this(), gradients);
  return {.call = kTopKCall,
          .tensor = gradients,
          .staging = Staging(gradients.device()),
          .steps = {[step](sluice::Communicator& job, sluice::DeviceTensors*) {
            return step->start(job);
          }},
          .outputs = {gradients},
          .finish = [step] { step->finish(); },
          .give_up = [step] { step->give_up(); }};
}

void TopKSums::forget() {
  if (under_way_) refuse(kTopKCall, "forget() while a step is under way");
  top_k_.forget();
}

void define_top_k_sums(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<TopKSums, std::shared_ptr<TopKSums>>(module, "TopKSums")
      .def(py::init<const at::Tensor&, std::uint64_t, std::uint32_t>())
      .def("forget", &TopKSums::forget)
      .def_property_readonly("sent", &TopKSums::sent)
      .def_property_readonly("delivered", &TopKSums::delivered);
}

}  // namespace sluice_torch
