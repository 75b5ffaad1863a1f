#include "bindings/mpi/requests.hpp"

#include <chrono>
#include <iterator>
#include <utility>

#include "worker/thread_without_signals.hpp"

namespace sluice_mpi {
namespace {

/// How long at most a request that is done waits for an older one of another communicator.
constexpr std::chrono::milliseconds kBetweenLooks{1};

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
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

MPI_Request Requests::start(const sluice::Work& work, std::uint64_t tensor_bytes,
                            std::shared_ptr<Membership> membership) {
  Pending pending{work, tensor_bytes, std::move(membership), new int(MPI_SUCCESS),
                  MPI_REQUEST_NULL};
  PMPI_Grequest_start(query, release, leave_uncancelled, pending.code, &pending.request);
  const MPI_Request request = pending.request;
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
    if (!thread_.joinable()) thread_ = sluice::thread_without_signals([this] { run(); });
  }
  changed_.notify_one();
  return request;
}

void Requests::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !pending_.empty(); });
    if (stop_) return;
    const sluice::Work oldest = pending_.front().work;
    lock.unlock();
    try {
      oldest.wait_for(kBetweenLooks);
    } catch (const sluice::Error&) {  // told by complete()
    }
    std::list<Pending> done;
    lock.lock();
    for (auto entry = pending_.begin(); entry != pending_.end();) {
      const auto next = std::next(entry);
      if (entry->work.done()) done.splice(done.end(), pending_, entry);
      entry = next;
    }
    lock.unlock();
    for (const Pending& pending : done) complete(pending);
    done.clear();
    lock.lock();
  }
}

void Requests::complete(const Pending& pending) {
  ledger_.charge(Call::kIallreduce, pending.tensor_bytes, pending.work.statistics());
  if (const auto error = pending.work.error()) *pending.code = errors_.code_of(*error);
  PMPI_Grequest_complete(pending.request);
}

}  // namespace sluice_mpi
