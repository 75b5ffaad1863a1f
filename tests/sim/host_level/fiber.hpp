// A function that can be left in its middle, and gone on with.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <ucontext.h>

namespace sluice::sim {

class Fiber {
 public:
  /// `body` runs up to its first leave() with the first go_on(). It throws nothing.
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void go_on();
  /// From within the body: go_on() returns.
  static void leave();
  bool ended() const { return ended_; }

 private:
  static void begin();

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t own_{};
  ucontext_t caller_{};
  bool ended_ = false;
  // For the sanitizer, which is to know on which stack it is.
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace sluice::sim
