#include "bindings/torch/csrc/joined_group.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include <unistd.h>

#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<JoinedGroup>> groups;
};

Registry& registry() {
  static Registry* const all = new Registry;  // for good: groups may end after static objects
  return *all;
}

std::runtime_error forked() {
  return failure(
      "this process was forked from the one that made the process group: only that one "
      "can use it");
}

}  // namespace

std::shared_ptr<JoinedGroup> JoinedGroup::open(Membership membership,
                                               std::vector<std::int64_t> global_ranks) {
  auto group = std::make_shared<JoinedGroup>(std::move(membership), std::move(global_ranks));
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().groups, [](const auto& one) { return one.expired(); });
  registry().groups.push_back(group);
  return group;
}

void JoinedGroup::close_all(bool by_exception) {
  std::vector<std::weak_ptr<JoinedGroup>> groups;
  {
    const std::lock_guard lock(registry().mutex);
    groups.swap(registry().groups);
  }
  for (const auto& one : groups)
    if (const auto group = one.lock()) group->close(by_exception);
}

JoinedGroup::JoinedGroup(Membership membership, std::vector<std::int64_t> global_ranks)
    : process_(getpid()),
      global_ranks_(std::move(global_ranks)),
      interrupt_(std::move(membership.interrupt)),
      context_(std::move(membership.context)),
      schedule_(std::move(membership.communicator)),
      completions_(schedule_, [this](Operation& operation) { expire(operation); }) {}

bool JoinedGroup::inherited() const {
  return getpid() != process_;
}

void JoinedGroup::refuse_if_inherited() const {
  if (inherited()) throw forked();
}

std::shared_ptr<Operation> JoinedGroup::start(Operation::Request request) {
  refuse_if_inherited();
  const bool goes_on_by_itself = request.steps.size() > 1 || request.staging.on_device();
  const std::uint64_t number = request.is_collective ? ++started_ : ++messages_started_;
  auto operation = std::make_shared<Operation>(std::move(request), number, callbacks_);
  schedule_.submit(operation);
  if (goes_on_by_itself) watch(operation);
  return operation;
}

void JoinedGroup::wait(Operation& operation, std::chrono::milliseconds bound) {
  if (operation.is_settled()) return;
  refuse_if_inherited();
  if (bound == std::chrono::milliseconds::zero() && operation.is_on_device()) {
    schedule_.wait_for_start(operation);
    if (operation.is_settled() || operation.let_stream_wait()) return;
  }
  if (bound == std::chrono::milliseconds::zero()) {
    if (!schedule_.wait(operation, operation.deadline())) expire(operation);
  } else if (!schedule_.wait(operation, Clock::now() + std::min(bound, kLongestTimeout))) {
    throw late(operation, bound);
  }
}

bool JoinedGroup::poll(Operation& operation) {
  if (operation.is_settled()) return true;
  if (inherited()) return false;
  if (!schedule_.poll(operation) && Clock::now() >= operation.deadline()) expire(operation);
  return operation.is_settled();
}

void JoinedGroup::watch(std::shared_ptr<Operation> operation) {
  if (inherited())
    operation->settle(std::make_exception_ptr(forked()));
  else
    completions_.watch(std::move(operation), shared_from_this());
}

void JoinedGroup::expire(Operation& operation) {
  operation.settle(std::make_exception_ptr(late(operation, operation.timeout())));
}

std::runtime_error JoinedGroup::late(const Operation& operation, std::chrono::milliseconds bound) {
  std::string missing;
  for (const std::uint16_t rank : schedule_.missing_ranks(operation)) {
    missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    if (rank < global_ranks_.size() && global_ranks_[rank] != rank)
      missing += " (global rank " + std::to_string(global_ranks_[rank]) + ")";
  }
  return failure(operation.description() + " is not done after " + std::to_string(bound.count()) +
                 " ms; it waits for " + (missing.empty() ? "no rank that is known" : missing));
}

void JoinedGroup::close(bool by_exception) {
  if (inherited() || closed_.exchange(true)) return;
  schedule_.close(by_exception);
  completions_.stop();
  callbacks_->stop();
  context_.reset();
}

}  // namespace sluice_torch
