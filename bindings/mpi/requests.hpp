// Ops under way as requests of MPI: generalized ones, which a thread of ours completes, so that the
// program's MPI_Wait and MPI_Test work as with any other. Needs MPI_THREAD_MULTIPLE.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <mpi.h>

#include <sluice/sluice.hpp>

#include "bindings/mpi/call_report.hpp"
#include "bindings/mpi/error_codes.hpp"
#include "bindings/mpi/mpi_memberships.hpp"

namespace sluice_mpi {

class Requests {
 public:
  Requests(ErrorCodes& errors, CallReport& call_report)
      : errors_(errors), call_report_(call_report) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();  ///< the program has completed all requests, as MPI demands of it

  /// A request for an MPI_Iallreduce; the communicator may be freed before it is done.
  MPI_Request start(const sluice::Work& work, std::uint64_t tensor_bytes,
                    std::shared_ptr<Membership> membership);

 private:
  struct Pending {
    sluice::Work work;
    std::uint64_t tensor_bytes;
    std::shared_ptr<Membership> membership;
    int* code;  ///< what MPI_Wait is to return; of the request
    MPI_Request request;
  };

  void run();
  void complete(const Pending& pending);

  ErrorCodes& errors_;
  CallReport& call_report_;
  sluice::CompletionQueue completions_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Pending> pending_;  // by their tags in the queue
  std::uint64_t started_ = 0;
  std::thread thread_;  // from the first request on, until the queue is interrupted
};

}  // namespace sluice_mpi
