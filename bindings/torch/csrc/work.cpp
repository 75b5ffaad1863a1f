#include "bindings/torch/csrc/work.hpp"

#include <utility>

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

}  // namespace sluice_torch
