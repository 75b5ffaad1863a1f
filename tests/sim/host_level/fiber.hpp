// A function that can be left in its middle and continued.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <ucontext.h>

namespace sluice::sim {

class Fiber {
 public:
  /// The first go_on() runs `body` up to its first leave(). It must not throw.
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void go_on();
  /// To be called by the body: go_on() returns.
  static void leave();
  bool ended() const { return ended_; }

 private:
  static void begin();

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t own_{};
  ucontext_t caller_{};
  bool ended_ = false;
  // for the sanitizer, which must know the current stack
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace sluice::sim
