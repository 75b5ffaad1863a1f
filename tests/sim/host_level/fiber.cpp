#include "tests/sim/host_level/fiber.hpp"

#include <utility>

// Only the address sanitizer's library has these.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                          std::size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                           std::size_t* bytes);
}

namespace sluice::sim {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
Fiber* running = nullptr;

void start_switch(void** fake_stack, const void* bottom, std::size_t bytes) {
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void finish_switch(void* fake_stack, const void** bottom, std::size_t* bytes) {
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique<std::byte[]>(kStackBytes)) {
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::begin, 0);
}

void Fiber::go_on() {
  Fiber* const before = std::exchange(running, this);
  void* fake_stack = nullptr;
  start_switch(&fake_stack, stack_.get(), kStackBytes);
  swapcontext(&caller_, &own_);
  finish_switch(fake_stack, nullptr, nullptr);
  running = before;
}

void Fiber::leave() {
  Fiber& self = *running;
  void* fake_stack = nullptr;
  start_switch(self.ended_ ? nullptr : &fake_stack, self.caller_stack_, self.caller_stack_bytes_);
  swapcontext(&self.own_, &self.caller_);
  finish_switch(fake_stack, &self.caller_stack_, &self.caller_stack_bytes_);
}

void Fiber::begin() {
  Fiber& self = *running;
  finish_switch(nullptr, &self.caller_stack_, &self.caller_stack_bytes_);
  self.body_();
  self.ended_ = true;
  leave();
}

}  // namespace sluice::sim
