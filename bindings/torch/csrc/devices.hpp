// PyTorch's devices and streams as Device has them. devices.cpp is CUDA's; a test has another,
// whose device is the CPU.
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "bindings/torch/csrc/device_copies.hpp"

namespace sluice_torch {

/// What ops with tensors there share; null: they are copied whole, by PyTorch's own operators.
std::shared_ptr<DevicePool> pool_of(at::Device device);

Device::Stream current_stream(at::Device device);
/// The tensor's memory is not used for another one before the stream has come so far.
void keep(const at::Tensor& tensor, Device::Stream stream);
/// Runs f at once, and what it gives to the device goes to the stream.
void with_stream(at::Device device, Device::Stream stream, const std::function<void()>& f);
/// Has f run with the stream, after all that this was given.
void give_to_stream(at::Device device, Device::Stream stream, std::function<void()> f);

/// Throws, in the name of `call`, if the current stream's work is recorded into a graph.
void refuse_capture(const std::string& call, at::Device device);

}  // namespace sluice_torch
