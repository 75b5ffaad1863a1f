#include "bindings/torch/csrc/staging.hpp"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

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

Staging::Staging(at::Device device, Reducing kind) : kind_(std::move(kind)) {
  if (!device.is_cpu()) lane_.emplace(device);
}

std::optional<at::Device> Staging::device() const {
  return lane_ ? std::optional(lane_->stream.device()) : std::nullopt;
}

/// The tensor itself, if its memory has what the library is to read.
at::Tensor Staging::read(const at::Tensor& tensor) const {
  const at::Tensor elements = resolved(tensor);
  if (kind_.factor.defined()) return elements.mul(kind_.factor).to(elements.scalar_type());
  if (!kind_.whole_bools || elements.scalar_type() != at::kBool) return elements;
  const at::Tensor bytes = elements.view(at::kByte);
  return bytes.gt(1).any().item<bool>() ? bytes.ne(0) : elements;
}

at::Tensor Staging::to_host(const at::Tensor& tensor, bool with_contents) {
  if (!lane_) return tensor;
  const at::Tensor host = at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().device(at::kCPU).pinned_memory(true));
  const c10::impl::VirtualGuardImpl guard(lane_->stream.device_type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), lane_->stream);
  if (with_contents) host.copy_(tensor, true);
  return host;
}

void Staging::note_back(const at::Tensor& host, const std::vector<at::Tensor>& targets) {
  backs_.push_back({host, targets});
}

at::Tensor Staging::input(const at::Tensor& tensor) {
  at::Tensor host;
  on_lane([&] {
    const at::Tensor elements = read(tensor);
    host =
        to_host(elements.is_non_overlapping_and_dense() ? elements : elements.contiguous(), true);
  });
  return host;
}

at::Tensor Staging::output(const at::Tensor& tensor) {
  at::Tensor host;
  on_lane([&] {
    const bool dense = tensor.is_non_overlapping_and_dense();
    const auto copy = [&] {
      return dense ? at::empty_like(tensor) : at::empty(tensor.sizes(), tensor.options());
    };
    host = to_host(dense && !is_lazy(tensor) ? tensor : copy(), false);
  });
  if (!host.is_same(tensor)) note_back(host, {tensor});
  return host;
}

at::Tensor Staging::in_place(const at::Tensor& tensor) {
  const at::Tensor host = input(tensor);
  if (!host.is_same(tensor)) note_back(host, {tensor});
  return host;
}

at::Tensor Staging::input(const std::vector<at::Tensor>& parts) {
  at::Tensor host;
  on_lane([&] {
    const auto one = as_one(parts);
    host = to_host(read(one ? *one : concatenated(parts)), true);
  });
  return host;
}

at::Tensor Staging::output(const std::vector<at::Tensor>& parts) {
  at::Tensor host;
  on_lane([&] {
    const auto one = as_one(parts);
    host = to_host(one ? *one : room_for(parts), false);
    if (!one || lane_) note_back(host, parts);
  });
  return host;
}

at::Tensor Staging::in_place(const std::vector<at::Tensor>& parts) {
  at::Tensor host;
  on_lane([&] {
    const auto one = as_one(parts);
    host = to_host(read(one ? *one : concatenated(parts)), true);
    if (!one || !host.is_same(*one)) note_back(host, parts);
  });
  return host;
}

void Staging::wait_for_inputs() const {
  if (lane_)
    c10::impl::VirtualGuardImpl(lane_->stream.device_type()).synchronizeStream(lane_->stream);
}

void Staging::copy_back() {
  on_lane([&] {
    for (const Back& back : backs_)
      if (back.targets.size() == 1)
        back.targets.front().copy_(back.host.view_as(back.targets.front()), true);
      else
        copy_apart(back.host, back.targets);
  });
  if (lane_) lane_->ended.record(lane_->stream);
}

void Staging::block_current_stream() const {
  if (!lane_) return;
  const c10::impl::VirtualGuardImpl guard(lane_->stream.device_type());
  lane_->ended.block(guard.getStream(lane_->stream.device()));
}

}  // namespace sluice_torch
