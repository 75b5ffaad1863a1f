#include "worker/api/context.hpp"

#include <atomic>
#include <cstddef>
#include <mutex>

#include "worker/config/worker_settings.hpp"

namespace sluice {
namespace {

std::atomic<bool> context_exists{false};

/// The context that Context::shared() returns, and how many have it.
struct Shared {
  std::mutex mutex;
  std::unique_ptr<Context> context;  // null: nobody has it
  ContextOptions options;            // the options with which it was opened
  std::size_t users = 0;
};

Shared& shared_context() {
  // Never freed: some release it after static objects are gone.
  static Shared* const one = new Shared;
  return *one;
}

/// Holds the lock, so that another caller finds the context open, or can open a new one.
void let_go(Context*) {
  Shared& one = shared_context();
  const std::lock_guard lock(one.mutex);
  if (--one.users == 0) one.context.reset();
}

}  // namespace

Context::Impl::OnePerProcess::OnePerProcess() {
  if (context_exists.exchange(true))
    throw Error(ErrorCode::kInvalidArgument,
                "a Context exists already in this process: share it between communicators");
}
Context::Impl::OnePerProcess::~OnePerProcess() {
  context_exists = false;
}

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>(options)) {}
Context::~Context() = default;

void Context::start_timeline(const std::string& file) {
  impl_->progress->start_timeline(file);
}

void Context::stop_timeline() {
  impl_->progress->stop_timeline();
}

std::shared_ptr<Context> Context::shared(const ContextOptions& options) {
  Shared& one = shared_context();
  const std::lock_guard lock(one.mutex);
  if (one.context) {
    one.context->impl().progress->refuse_if_inherited();
    check_agreement(options, one.options);
  } else {
    one.context = std::make_unique<Context>(options);
    one.options = options;
  }
  ++one.users;
  return std::shared_ptr<Context>(one.context.get(), let_go);
}

}  // namespace sluice
