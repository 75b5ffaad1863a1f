// Python's lock is not held where this process waits: whoever it waits for may need it.
#pragma once

#include <optional>

#include <torch/csrc/utils/pybind.h>

namespace sluice_torch {

/// Lets go of the lock if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace sluice_torch
