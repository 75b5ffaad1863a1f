#include "bindings/mpi/mpi_memberships.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <future>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/mpi/print_line.hpp"
#include "common/memory/thread_without_signals.hpp"

namespace sluice_mpi {
namespace {

using sluice::Error;
using sluice::ErrorCode;

constexpr int kRanksMax = 256;

std::uint32_t random_job() {
  return std::random_device()() & 0x7fff'ffff;
}

/// Whether its ranks have agreed in one MPI_Init; those that were started or met later have not.
bool is_of_one_world(MPI_Comm comm, int ranks) {
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  PMPI_Comm_group(comm, &members);
  PMPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> own_ranks(static_cast<std::size_t>(ranks));
  std::vector<int> world_ranks(static_cast<std::size_t>(ranks));
  std::iota(own_ranks.begin(), own_ranks.end(), 0);
  PMPI_Group_translate_ranks(members, ranks, own_ranks.data(), world, world_ranks.data());
  PMPI_Group_free(&members);
  PMPI_Group_free(&world);
  return std::ranges::find(world_ranks, MPI_UNDEFINED) == world_ranks.end();
}

/// What kept it from being done, if anything did.
template <class F>
std::optional<Error> attempt(F&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kUnavailable, error.what());
  }
}

}  // namespace

struct Memberships::CommRank {
  explicit CommRank(MPI_Comm communicator) : comm(communicator) {
    PMPI_Comm_test_inter(comm, &is_inter);
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
  }
  std::string name() const {
    char text[MPI_MAX_OBJECT_NAME] = {};
    int length = 0;
    PMPI_Comm_get_name(comm, text, &length);
    return length == 0 ? "a communicator" : text;
  }
  bool can_be_job() const {
    return !is_inter && ranks >= 2 && ranks <= kRanksMax && is_of_one_world(comm, ranks);
  }

  MPI_Comm comm;
  int is_inter = 0;
  int rank = 0;
  int ranks = 0;
};

struct Memberships::Agreement {
  std::optional<int> failed;  ///< the lowest rank that is not well
  std::uint32_t job = 0;      ///< rank 0's
};

Memberships::Memberships(const Settings& settings, MpiProgress& progress)
    : settings_(settings), progress_(progress) {
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Memberships::forget, &keyval_, this);
}

Memberships::~Memberships() {
  while (!memberships_.empty()) PMPI_Comm_delete_attr(memberships_.begin()->second->comm, keyval_);
  PMPI_Comm_free_keyval(&keyval_);
}

int Memberships::forget(MPI_Comm, int, void* attribute, void* memberships) {
  auto& self = *static_cast<Memberships*>(memberships);
  std::shared_ptr<Membership> leaving;
  const std::lock_guard lock(self.mutex_);
  const auto found = self.memberships_.find(attribute);
  leaving = std::move(found->second);
  self.memberships_.erase(found);
  return MPI_SUCCESS;
}

std::shared_ptr<Membership> Memberships::known(MPI_Comm comm) {
  void* attribute = nullptr;
  int is_there = 0;
  PMPI_Comm_get_attr(comm, keyval_, &attribute, &is_there);
  if (!is_there) return nullptr;
  const std::lock_guard lock(mutex_);
  return memberships_.at(attribute);
}

std::shared_ptr<Membership> Memberships::of(MPI_Comm comm) {
  if (auto membership = known(comm)) return membership;
  const auto membership = std::make_shared<Membership>(Membership{.comm = comm, .job = {}});
  form(*membership);
  {
    const std::lock_guard lock(mutex_);
    memberships_.emplace(membership.get(), membership);
  }
  PMPI_Comm_set_attr(comm, keyval_, membership.get());
  return membership;
}

void Memberships::form(Membership& membership) {
  const CommRank self(membership.comm);
  if (self.can_be_job())
    join(membership, self);
  else
    membership.verdict = Verdict::kCommunicator;
}

void Memberships::join(Membership& membership, const CommRank& self) {
  std::optional<Error> failure = attempt([&] { context(); });
  const Agreement opened = agree(self, !failure, random_job());
  if (opened.failed) return refuse(membership, self, *opened.failed, failure);

  sluice::JobOptions options = settings_.job;
  options.job = opened.job;
  options.rank = static_cast<std::uint16_t>(self.rank);
  options.world_size = static_cast<std::uint16_t>(self.ranks);
  failure = attempt([&] {
    std::packaged_task<sluice::Communicator()> task(
        [&] { return sluice::Communicator(context(), options); });
    auto joining = task.get_future();
    std::thread thread = sluice::thread_without_signals(std::move(task));
    progress_.serve_until(
        [&](auto bound) { return joining.wait_for(bound) == std::future_status::ready; });
    thread.join();
    membership.job.emplace(joining.get());
  });
  const Agreement joined = agree(self, !failure, 0);
  if (joined.failed) refuse(membership, self, *joined.failed, failure);
}

/// Collective. No rank is well where MPI itself fails.
Memberships::Agreement Memberships::agree(const CommRank& self, bool is_well, std::uint32_t job) {
  const std::int64_t weight = is_well ? 0 : self.ranks - self.rank;
  std::array<std::int64_t, 2> highest{weight, self.rank == 0 ? job : 0};
  const int code = PMPI_Allreduce(MPI_IN_PLACE, highest.data(), 2, MPI_INT64_T, MPI_MAX, self.comm);
  Agreement agreement{.failed = {}, .job = static_cast<std::uint32_t>(highest[1])};
  if (code != MPI_SUCCESS) agreement.failed = self.rank;
  if (code == MPI_SUCCESS && highest[0] != 0)
    agreement.failed = self.ranks - static_cast<int>(highest[0]);
  return agreement;
}

/// The lowest rank that failed says why, once.
void Memberships::refuse(Membership& membership, const CommRank& self, int failed,
                         const std::optional<Error>& own) {
  membership.verdict = Verdict::kRefused;
  membership.job.reset();
  if (failed != self.rank || !own) return;
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_said_why_, true)) return;
  int world_rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  print_line("calls on " + self.name() + ", of " + std::to_string(self.ranks) +
             " ranks, pass through to MPI, as rank " + std::to_string(world_rank) +
             " cannot join: " + own->what());
}

/// Opened at the first call, which all others wait for; throws the same Error ever after.
sluice::Context& Memberships::context() {
  std::call_once(context_opened_, [&] {
    context_failure_ = attempt([&] { context_ = sluice::Context::shared(settings_.context); });
  });
  if (context_failure_) throw Error(*context_failure_);
  return *context_;
}

}  // namespace sluice_mpi
