#include "bindings/mpi/error_codes.hpp"

namespace sluice_mpi {

int ErrorCodes::code_of(const sluice::Error& error) {
  const std::string text =
      ("sluice: " + std::string(error.what())).substr(0, MPI_MAX_ERROR_STRING - 1);
  const std::lock_guard lock(mutex_);
  if (class_ == MPI_SUCCESS) {
    PMPI_Add_error_class(&class_);
    PMPI_Add_error_string(class_, "an error of Sluice");
  }
  const auto [entry, is_new] = codes_.try_emplace(text, MPI_ERR_OTHER);
  if (is_new) {
    PMPI_Add_error_code(class_, &entry->second);
    PMPI_Add_error_string(entry->second, text.c_str());
  }
  return entry->second;
}

int ErrorCodes::raise(const sluice::Error& error, MPI_Comm comm) {
  const int code = code_of(error);
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace sluice_mpi
