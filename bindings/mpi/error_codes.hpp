// Sluice's errors as MPI's: an error class of our own, and a code for each text.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include <mpi.h>

#include <sluice/error.hpp>

namespace sluice_mpi {

class ErrorCodes {
 public:
  /// The code that MPI_Error_string explains with the error's text.
  int code_of(const sluice::Error& error);

  /// Calls the communicator's error handler; what the MPI function is to return.
  int raise(const sluice::Error& error, MPI_Comm comm);

 private:
  std::mutex mutex_;
  int class_ = MPI_SUCCESS;  // made with the first error
  std::map<std::string, int> codes_;
};

}  // namespace sluice_mpi
