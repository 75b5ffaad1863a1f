#include "bindings/mpi/requests.hpp"

#include <utility>

#include "common/memory/thread_without_signals.hpp"

namespace sluice_mpi {
namespace {

int query(void* code, MPI_Status* status) {
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return *static_cast<int*>(code);
}

int release(void* code) {
  delete static_cast<int*>(code);
  return MPI_SUCCESS;
}

int leave_uncancelled(void*, int) {
  return MPI_SUCCESS;
}

}  // namespace

Requests::~Requests() {
  completions_.interrupt();
  if (thread_.joinable()) thread_.join();
}

MPI_Request Requests::start(const sluice::Work& work, std::uint64_t tensor_bytes,
                            std::shared_ptr<Membership> membership) {
  Pending pending{work, tensor_bytes, std::move(membership), new int(MPI_SUCCESS),
                  MPI_REQUEST_NULL};
  PMPI_Grequest_start(query, release, leave_uncancelled, pending.code, &pending.request);
  const MPI_Request request = pending.request;
  const std::lock_guard lock(mutex_);
  const std::uint64_t tag = ++started_;
  pending_.emplace(tag, std::move(pending));
  completions_.add(work, tag);
  if (!thread_.joinable()) thread_ = sluice::thread_without_signals([this] { run(); });
  return request;
}

void Requests::run() {
  while (const auto tag = completions_.next(std::chrono::nanoseconds::max())) {
    std::unique_lock lock(mutex_);
    const auto done = pending_.extract(*tag);
    lock.unlock();
    complete(done.mapped());
  }
}

void Requests::complete(const Pending& pending) {
  call_report_.charge(Call::kIallreduce, pending.tensor_bytes, pending.work.statistics());
  if (const auto error = pending.work.error()) *pending.code = errors_.code_of(*error);
  PMPI_Grequest_complete(pending.request);
}

}  // namespace sluice_mpi
