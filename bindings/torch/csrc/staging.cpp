#include "bindings/torch/csrc/staging.hpp"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

/// Its memory has other bits than its elements.
bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg();
}

at::Tensor resolved(const at::Tensor& tensor) {
  return is_lazy(tensor) ? tensor.resolve_conj().resolve_neg() : tensor;
}

/// The tensors as one flat view, if they follow each other in one storage as lists of chunks do.
std::optional<at::Tensor> as_one(const std::vector<at::Tensor>& parts) {
  std::int64_t total = 0;
  for (const at::Tensor& part : parts) {
    const at::Tensor& first = parts.front();
    if (!part.is_contiguous() || is_lazy(part) || !part.is_alias_of(first) ||
        part.scalar_type() != first.scalar_type() ||
        part.storage_offset() != first.storage_offset() + total)
      return std::nullopt;
    total += part.numel();
  }
  if (total == 0) return std::nullopt;
  return parts.front().as_strided({total}, {1});
}

at::Tensor concatenated(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> flat;
  flat.reserve(parts.size());
  for (const at::Tensor& part : parts) flat.push_back(resolved(part).reshape(-1));
  return at::cat(flat);
}

at::Tensor room_for(const std::vector<at::Tensor>& parts) {
  std::int64_t total = 0;
  for (const at::Tensor& part : parts) total += part.numel();
  return at::empty({total}, parts.front().options());
}

void copy_apart(const at::Tensor& flat, const std::vector<at::Tensor>& targets) {
  std::int64_t begin = 0;
  for (const at::Tensor& target : targets) {
    target.copy_(flat.narrow(0, begin, target.numel()).view(target.sizes()), true);
    begin += target.numel();
  }
}

}  // namespace

Staging::Lane::Lane(at::Device device)
    : stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      ended(device.type()) {
  c10::Event begun(device.type());
  begun.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  begun.block(stream);
}

Staging::Staging(at::Device device, Reducing kind) : device_(device), kind_(std::move(kind)) {
  if (auto pool = pool_of(device))
    copies_ = std::make_shared<DeviceCopies>(std::move(pool), current_stream(device));
  else if (!device.is_cpu())
    lane_.emplace(device);
}

std::optional<at::Device> Staging::device() const {
  return device_.is_cpu() ? std::nullopt : std::optional(device_);
}

/// The tensor itself, if its memory has what the library is to read. Of one on a device nobody
/// waits to learn that.
at::Tensor Staging::read(const at::Tensor& tensor) const {
  const at::Tensor elements = resolved(tensor);
  if (kind_.factor.defined()) return elements.mul(kind_.factor).to(elements.scalar_type());
  if (!kind_.whole_bools || elements.scalar_type() != at::kBool) return elements;
  const at::Tensor bytes = elements.view(at::kByte);
  return on_device() || bytes.gt(1).any().item<bool>() ? bytes.ne(0) : elements;
}

at::Tensor Staging::to_host(const at::Tensor& tensor, Use use) {
  if (copies_) return pass_through(tensor, use);
  if (!lane_) return tensor;
  const at::Tensor host = at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().device(at::kCPU).pinned_memory(true));
  const c10::impl::VirtualGuardImpl guard(lane_->stream.device_type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), lane_->stream);
  if (use != Use::kWritten) host.copy_(tensor, true);
  return host;
}

/// The pinned memory through which the tensor's blocks will pass.
at::Tensor Staging::pass_through(const at::Tensor& tensor, Use use) {
  const auto options = at::TensorOptions(at::kCPU).dtype(tensor.scalar_type());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  keep(tensor, copies_->stream());
  auto* const memory = static_cast<std::byte*>(tensor.data_ptr());
  const std::size_t bytes = tensor.nbytes();
  std::byte* host = nullptr;
  try {
    host = use == Use::kBoth   ? copies_->in_place(memory, bytes)
           : use == Use::kRead ? copies_->input(memory, bytes)
                               : copies_->output(memory, bytes);
  } catch (const DeviceError& error) {
    throw failure(described(tensor) + " on " + tensor.device().str() + ": " + error.what());
  }
  if (use == Use::kRead) read_ = tensor;
  note_back(tensor, {});
  return at::from_blob(
      host, tensor.sizes(), tensor.strides(), [copies = copies_](void*) {}, options);
}

void Staging::write(const Back& back) {
  untracked([&] {
    if (back.targets.size() == 1)
      back.targets.front().copy_(back.from.view_as(back.targets.front()), true);
    else if (!back.targets.empty())
      copy_apart(back.from, back.targets);
  });
}

/// With DeviceCopies, `from` is on the device, too, and without targets it is the result itself.
void Staging::note_back(const at::Tensor& from, const std::vector<at::Tensor>& targets) {
  const Back back{from, targets};
  if (!copies_) return backs_.push_back(back);
  // Input and result are kept while the stream needs them.
  copies_->then([device = device_, stream = copies_->stream(), back, read = read_] {
    give_to_stream(device, stream, [back, read] { write(back); });
  });
}

at::Tensor Staging::one(const at::Tensor& tensor, Use use) {
  at::Tensor from, host;
  on_lane([&] {
    const bool dense = tensor.is_non_overlapping_and_dense();
    if (use != Use::kWritten) {
      const at::Tensor elements = read(tensor);
      from = elements.is_non_overlapping_and_dense() ? elements : elements.contiguous();
    } else if (dense && !is_lazy(tensor)) {
      from = tensor;
    } else {
      from = dense ? at::empty_like(tensor) : at::empty(tensor.sizes(), tensor.options());
    }
    host = to_host(from, use);
  });
  const at::Tensor& result = copies_ ? from : host;
  if (use != Use::kRead && !result.is_same(tensor)) note_back(result, {tensor});
  return host;
}

at::Tensor Staging::many(const std::vector<at::Tensor>& parts, Use use) {
  at::Tensor from, host;
  std::optional<at::Tensor> whole;
  on_lane([&] {
    whole = as_one(parts);
    from = use == Use::kWritten ? (whole ? *whole : room_for(parts))
                                : read(whole ? *whole : concatenated(parts));
    host = to_host(from, use);
  });
  const at::Tensor& result = copies_ ? from : host;
  if (use != Use::kRead && !(whole && result.is_same(*whole))) note_back(result, parts);
  return host;
}

at::Tensor Staging::input(const at::Tensor& tensor) {
  return one(tensor, Use::kRead);
}
at::Tensor Staging::output(const at::Tensor& tensor) {
  return one(tensor, Use::kWritten);
}
at::Tensor Staging::in_place(const at::Tensor& tensor) {
  return one(tensor, Use::kBoth);
}
at::Tensor Staging::input(const std::vector<at::Tensor>& parts) {
  return many(parts, Use::kRead);
}
at::Tensor Staging::output(const std::vector<at::Tensor>& parts) {
  return many(parts, Use::kWritten);
}
at::Tensor Staging::in_place(const std::vector<at::Tensor>& parts) {
  return many(parts, Use::kBoth);
}

void Staging::wait_for_inputs() const {
  if (lane_)
    c10::impl::VirtualGuardImpl(lane_->stream.device_type()).synchronizeStream(lane_->stream);
}

void Staging::copy_back() {
  on_stream([&] {
    for (const Back& back : backs_) write(back);
  });
  if (lane_) lane_->ended.record(lane_->stream);
}

void Staging::give_up() const {
  if (copies_) copies_->give_up();
}

void Staging::block_current_stream() const {
  if (copies_) return copies_->block(current_stream(device_));
  if (!lane_) return;
  const c10::impl::VirtualGuardImpl guard(lane_->stream.device_type());
  lane_->ended.block(guard.getStream(lane_->stream.device()));
}

}  // namespace sluice_torch
