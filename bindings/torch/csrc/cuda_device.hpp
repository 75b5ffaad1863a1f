// CUDA as a Device, by its driver's interface, which is looked up at run time: nothing of CUDA is
// needed to build this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/torch/csrc/device.hpp"

namespace sluice_torch {

/// The GPU of this index as the driver counts. Throws DeviceError, which says what is missing.
/// `libraries`: where NVRTC may be, beside its usual places.
std::shared_ptr<Device> open_cuda(int index, const std::vector<std::string>& libraries);

/// The kernels for GPUs of this compute capability (90: 9.0), as PTX. Throws DeviceError.
std::string compile_kernels(int capability, const std::vector<std::string>& libraries);

}  // namespace sluice_torch
