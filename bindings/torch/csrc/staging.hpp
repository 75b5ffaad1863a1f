// A call's tensors as the library needs them: in host memory, each in one piece.
//
// What already is so is used where it lies. The rest is copied: strided views, lists of tensors,
// and what PyTorch has conjugated or negated lazily into one piece.
//
// Device tensors pass through pinned memory on a stream of their own, which starts after what the
// caller's stream has been given, and after which the caller's stream goes on: only blocks that are
// not zero, while the op runs, where this device has DeviceCopies (see there); else whole tensors,
// before it begins and after it has ended.
#pragma once

#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "bindings/torch/csrc/devices.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"

namespace sluice_torch {

class Staging {
 public:
  /// `device`: of all the call's tensors. `kind`: what is read is made ready for it.
  explicit Staging(at::Device device, Reducing kind = {});

  /// One tensor, its elements in the order of memory where that has no holes; every rank must have
  /// the same order then. Read, written, or both.
  at::Tensor input(const at::Tensor& tensor);
  at::Tensor output(const at::Tensor& tensor);
  at::Tensor in_place(const at::Tensor& tensor);

  /// Several, one after the other, each row by row.
  at::Tensor input(const std::vector<at::Tensor>& parts);
  at::Tensor output(const std::vector<at::Tensor>& parts);
  at::Tensor in_place(const std::vector<at::Tensor>& parts);

  bool on_device() const { return lane_ || copies_; }
  std::optional<at::Device> device() const;  ///< unless that is the CPU
  /// What the library is to be given with the op; null: nothing.
  sluice::DeviceTensors* device_tensors() const { return copies_.get(); }
  /// A thread must wait for the copies to host memory before the op begins.
  bool copies_before() const { return lane_.has_value(); }
  void wait_for_inputs() const;  ///< until these have arrived
  /// All that the device is to do was given to a stream already: no thread need wait for the op.
  bool ends_by_itself() const { return copies_ && copies_->has_begun(); }
  void copy_back();                   ///< once the library has written the outputs
  void give_up() const;               ///< instead, if the op has failed
  void block_current_stream() const;  ///< until the results are where they belong

  /// Runs f, on a device with the stream of the copies as the current one.
  template <class F>
  void on_stream(F&& f) const {
    if (copies_) return with_stream(device_, copies_->stream(), f);
    if (!lane_) return f();
    const c10::StreamGuard guard(lane_->stream);
    f();
  }

 private:
  /// Runs f there. What it does is no part of the caller's graph: neither autograd nor a tracer is
  /// to see it. Copies that it makes are shared, so that they are the only ones.
  template <class F>
  void on_lane(F&& f) const {
    untracked([&] { on_stream(f); });
  }
  template <class F>
  static void untracked(F&& f) {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard untraced(c10::DispatchKey::Python);
    const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::PythonTLSSnapshot);
    const SharedTensors shared;
    f();
  }

  struct Lane {
    explicit Lane(at::Device device);
    c10::Stream stream;
    c10::Event ended;
  };
  struct Back {
    at::Tensor from;
    std::vector<at::Tensor> targets;
  };

  enum class Use { kRead, kWritten, kBoth };

  at::Tensor read(const at::Tensor& tensor) const;
  at::Tensor to_host(const at::Tensor& tensor, Use use);
  at::Tensor pass_through(const at::Tensor& tensor, Use use);
  at::Tensor one(const at::Tensor& tensor, Use use);
  at::Tensor many(const std::vector<at::Tensor>& parts, Use use);
  void note_back(const at::Tensor& from, const std::vector<at::Tensor>& targets);
  static void write(const Back& back);

  at::Device device_;
  std::shared_ptr<DeviceCopies> copies_;  // on a device that has them; else,
  std::optional<Lane> lane_;              // on another one; neither: in host memory
  Reducing kind_;
  at::Tensor read_;  // on the device
  std::vector<Back> backs_;
};

}  // namespace sluice_torch
