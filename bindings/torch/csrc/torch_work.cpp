#include "bindings/torch/csrc/torch_work.hpp"

#include <utility>

#include <torch/version.h>

#include "bindings/torch/csrc/without_gil.hpp"

namespace sluice_torch {

Work::Work(std::shared_ptr<JoinedGroup> group, std::shared_ptr<Operation> operation,
           c10d::OpType type)
    : c10d::Work(-1, type), group_(std::move(group)), operation_(std::move(operation)) {}

Work::~Work() {
  if (operation_->is_over() || group_->inherited()) return;
  const WithoutGil waiting;
  group_->watch(operation_);
}

bool Work::isCompleted() {
  const WithoutGil waiting;
  return group_->poll(*operation_);
}

bool Work::isSuccess() const {
  return operation_->is_settled() && !operation_->error();
}

std::exception_ptr Work::exception() const {
  return operation_->error();
}

std::vector<at::Tensor> Work::result() {
  return operation_->outputs();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  const WithoutGil waiting;
  group_->wait(*operation_, timeout);
  if (const auto error = operation_->error()) std::rethrow_exception(error);
  synchronize();
  return true;
}

void Work::synchronize() {
  operation_->block_current_stream();
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const WithoutGil waiting;
  const auto future = operation_->future();
  if (!group_->poll(*operation_)) group_->watch(operation_);
  return future;
}

namespace {
#if TORCH_VERSION_MAJOR >= 2
constexpr auto kSeveral = c10d::OpType::COALESCED;
#else
constexpr auto kSeveral = c10d::OpType::UNKNOWN;
#endif
}  // namespace

Works::Works(std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : c10d::Work(-1, kSeveral), works_(std::move(works)) {}

bool Works::isCompleted() {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
}

bool Works::isSuccess() const {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr Works::exception() const {
  for (const auto& work : works_)
    if (const auto error = work->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> Works::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const auto tensors = work->result();
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

bool Works::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void Works::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

c10::intrusive_ptr<c10::ivalue::Future> Works::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

}  // namespace sluice_torch
