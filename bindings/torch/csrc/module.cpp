#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <sluice/sluice.h>

#include "bindings/torch/csrc/compressors.hpp"
#include "bindings/torch/csrc/process_group.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"
#include "bindings/torch/csrc/top_k_sums.hpp"

PYBIND11_MODULE(_backend, module) {
  namespace py = pybind11;
  using sluice_torch::ProcessGroupSluice;
  py::module_::import("torch.distributed");  // whose types these build on
  py::class_<ProcessGroupSluice, c10::intrusive_ptr<ProcessGroupSluice>, sluice_torch::Base>(
      module, "ProcessGroupSluice")
      .def(py::init([](const c10d::DistributedBackendOptions& options,
                       const sluice_torch::Settings& settings) {
             return c10::make_intrusive<ProcessGroupSluice>(options, settings);
           }),
           py::arg("options"), py::arg("settings"), py::call_guard<py::gil_scoped_release>())
      .def("all_reduce_top_k", &ProcessGroupSluice::allreduce_top_k, py::arg("sums"),
           py::arg("gradients"), py::call_guard<py::gil_scoped_release>())
      .def("all_reduce_encoded", &ProcessGroupSluice::allreduce_encoded, py::arg("tensor"),
           py::arg("encoding"), py::arg("block_elements") = 0,
           py::call_guard<py::gil_scoped_release>())
      .def("_set_default_timeout", &ProcessGroupSluice::set_timeout, py::arg("timeout"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "abort", [](ProcessGroupSluice& group) { group.close(true); },
          "Leaves the job at once. Its ops in flight fail, here and on all other ranks.")
      .def(
          "shutdown", [](ProcessGroupSluice& group) { group.close(false); },
          "Leaves the job. No call may follow. Ops in flight fail, here and on all other ranks.")
      .def_property_readonly("options", &ProcessGroupSluice::options,
                             "Its _timeout is that of calls that give none.")
      .def_property_readonly("bytes_sent", &ProcessGroupSluice::bytes_sent,
                             "By this rank, for the operations that ended well; UDP payload.");
  module.attr("version") = sluice_version();
  module.attr("build") = sluice_build();
  module.def("close_all", &sluice_torch::JoinedGroup::close_all, py::arg("by_exception"),
             py::call_guard<py::gil_scoped_release>());
  module.def("begin_shared_tensors", &sluice_torch::begin_shared_tensors);
  module.def("end_shared_tensors", &sluice_torch::end_shared_tensors);
  module.def("shares_memory", &sluice_torch::shares_memory);
  sluice_torch::define_compressors(module);
  sluice_torch::define_top_k_sums(module);
}
