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

/// Lets handlers of signals run, as Ctrl-C's, if this is Python's main thread, and throws what they
/// raise: pybind11::error_already_set. The lock must not be held.
inline void run_signal_handlers() {
  const pybind11::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace sluice_torch
