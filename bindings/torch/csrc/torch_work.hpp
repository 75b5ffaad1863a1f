// The handle of an operation that PyTorch gives to its callers. Dropping it ends nothing.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "bindings/torch/csrc/joined_group.hpp"

namespace sluice_torch {

class Work final : public c10d::Work {
 public:
  Work(std::shared_ptr<JoinedGroup> group, std::shared_ptr<Operation> operation, c10d::OpType type);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::shared_ptr<JoinedGroup> group_;
  const std::shared_ptr<Operation> operation_;
};

/// The handle of several together.
class Works final : public c10d::Work {
 public:
  explicit Works(std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace sluice_torch
