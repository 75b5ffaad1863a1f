#include "bindings/mpi/negotiation.hpp"

#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include "bindings/mpi/print_line.hpp"

namespace sluice_mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTag = 20942;
constexpr std::chrono::milliseconds kBetweenLooks{1};

/// The others wait so much longer than rank 0, so that its answer ends their wait.
constexpr std::chrono::seconds kAnswerMargin{30};

struct Announcement {
  std::int32_t ready = 0;
  std::int32_t thread_multiple = 0;
};

struct Answer {
  std::int32_t accepted = 0;
  std::int32_t reporter = -1;
  std::int32_t thread_multiple = 1;
  std::int32_t barriers = 0;
  std::uint64_t min_bytes = 0;
};

bool all_done_by(Clock::time_point deadline, std::vector<MPI_Request>& requests) {
  const int count = static_cast<int>(requests.size());
  while (true) {
    int done = 0;
    PMPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done || Clock::now() >= deadline) return done;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

/// Whether it had been received.
bool end_receive(MPI_Request& request) {
  int done = 0;
  PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
  if (done) return true;
  PMPI_Cancel(&request);
  PMPI_Wait(&request, MPI_STATUS_IGNORE);
  return false;
}

class Coordinator {
 public:
  explicit Coordinator(int ranks) : heard_(std::size_t(ranks)), here_(std::size_t(ranks), true) {}

  void listen(std::chrono::milliseconds time_limit) {
    std::vector<MPI_Request> requests(heard_.size(), MPI_REQUEST_NULL);
    for (std::size_t rank = 1; rank < heard_.size(); ++rank)
      PMPI_Irecv(&heard_[rank], sizeof(Announcement), MPI_BYTE, int(rank), kTag, MPI_COMM_WORLD,
                 &requests[rank]);
    if (all_done_by(Clock::now() + time_limit, requests)) return;
    for (std::size_t rank = 1; rank < heard_.size(); ++rank)
      here_[rank] = end_receive(requests[rank]);
  }

  Answer decide(const Candidate& own) {
    heard_[0] = {own.ready, own.thread_multiple};
    Answer answer{.accepted = true, .barriers = own.barriers, .min_bytes = own.min_bytes};
    for (std::size_t rank = 0; rank < heard_.size(); ++rank) {
      if (here_[rank] && heard_[rank].ready) {
        answer.thread_multiple &= heard_[rank].thread_multiple;
        continue;
      }
      if (answer.accepted && here_[rank]) answer.reporter = int(rank);
      if (answer.accepted && !here_[rank]) print_missing(rank, own.time_limit);
      answer.accepted = false;
    }
    return answer;
  }

  void tell(const Answer& answer) const {
    for (std::size_t rank = 1; rank < heard_.size(); ++rank)
      if (here_[rank]) PMPI_Send(&answer, sizeof answer, MPI_BYTE, int(rank), kTag, MPI_COMM_WORLD);
  }

 private:
  static void print_missing(std::size_t rank, std::chrono::milliseconds time_limit) {
    print_line("everything passes through to MPI: rank " + std::to_string(rank) +
               " has not loaded libsluice-mpi.so, or did not come within " +
               std::to_string(time_limit.count()) + " ms");
  }

  std::vector<Announcement> heard_;
  std::vector<bool> here_;
};

Answer announce(const Candidate& own, int rank) {
  const Announcement announcement{own.ready, own.thread_multiple};
  PMPI_Send(&announcement, sizeof announcement, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
  Answer answer;
  std::vector<MPI_Request> receive(1, MPI_REQUEST_NULL);
  PMPI_Irecv(&answer, sizeof answer, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, receive.data());
  if (all_done_by(Clock::now() + own.time_limit + kAnswerMargin, receive) ||
      end_receive(receive[0]))
    return answer;
  print_line("everything passes through to MPI: rank " + std::to_string(rank) +
             " has no answer from rank 0, which may not have loaded libsluice-mpi.so");
  return {};
}

}  // namespace

NegotiationResult negotiate(const Candidate& own) {
  int rank = 0;
  int ranks = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Answer answer;
  if (rank == 0) {
    Coordinator coordinator(ranks);
    coordinator.listen(own.time_limit);
    answer = coordinator.decide(own);
    coordinator.tell(answer);
  } else {
    answer = announce(own, rank);
  }
  if (!answer.accepted) return {.terms = {}, .is_reporter = answer.reporter == rank};
  return {.terms = Terms{.thread_multiple = answer.thread_multiple != 0,
                         .min_bytes = answer.min_bytes,
                         .barriers = answer.barriers != 0}};
}

}  // namespace sluice_mpi
