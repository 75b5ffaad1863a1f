#include "bindings/mpi/collectives.hpp"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include <sluice/sluice.hpp>

#include "bindings/mpi/element_types.hpp"
#include "bindings/mpi/interposer.hpp"
#include "bindings/mpi/packed_elements.hpp"

namespace sluice_mpi {
namespace {

using sluice::ElementType;

int ranks_in(MPI_Comm comm) {
  int ranks = 0;
  PMPI_Comm_size(comm, &ranks);
  return ranks;
}

std::uint64_t bytes_of(int count, MPI_Datatype type) {
  return count <= 0 ? 0 : sluice_mpi::bytes_of(static_cast<std::uint64_t>(count), type);
}

// ---- verdicts on a call by its arguments; those on its communicator come after -----------------

/// What is reduced, and how.
struct Operands {
  Operands(int number, MPI_Datatype datatype, MPI_Op op)
      : count(static_cast<std::uint64_t>(number)),
        type(datatype),
        operation(op),
        bytes(bytes_of(number, datatype)),
        elements(elements_of(datatype, op)) {}

  Verdict judge(Interposer& interposer) const {
    if (bytes < interposer.terms.min_bytes) return Verdict::kSmall;
    if (elements) return Verdict::kTakenOver;
    interposer.call_report.lacks(name_of(type, operation));
    return Verdict::kElements;
  }

  std::uint64_t count;
  MPI_Datatype type;
  MPI_Op operation;
  std::uint64_t bytes;
  std::optional<Elements> elements;  ///< none: Sluice has not these
};

Verdict on_move(const Terms& terms, std::uint64_t bytes) {
  if (bytes < terms.min_bytes) return Verdict::kSmall;
  return bytes <= INT_MAX ? Verdict::kTakenOver : Verdict::kLarge;
}

/// Another root is MPI's to refuse, or belongs to an intercommunicator.
bool is_rank(int root, MPI_Comm comm) {
  return root >= 0 && root < ranks_in(comm);
}

// ---- calls that are taken over ------------------------------------------------------------------

/// `run`, whose exceptions become what the MPI function returns.
template <class Run>
int with_mpi_errors(Interposer& interposer, MPI_Comm comm, Run&& run) {
  try {
    run();
    return MPI_SUCCESS;
  } catch (const MpiFailure& failure) {
    return failure.code;
  } catch (const sluice::Error& error) {
    return interposer.errors.raise(error, comm);
  } catch (const std::exception& error) {
    return interposer.errors.raise({sluice::ErrorCode::kUnavailable, error.what()}, comm);
  }
}

/// `judge(interposer)` decides by the arguments, `find(memberships)` gives the communicator's, null
/// if it has none; `run(interposer, membership)` is the taken-over call, `pass()` MPI's own.
template <class Judge, class Find, class Run, class Pass>
int serve(Call call, MPI_Comm comm, Judge&& judge, Find&& find, Run&& run, Pass&& pass) {
  Interposer* const interposer = Interposer::active();
  if (interposer == nullptr || comm == MPI_COMM_NULL) return pass();
  Verdict verdict = judge(*interposer);
  std::shared_ptr<Membership> membership;
  if (verdict == Verdict::kTakenOver) {
    membership = find(interposer->memberships);
    verdict = membership ? membership->verdict : Verdict::kNoJob;
  }
  interposer->call_report.enter(call, verdict);
  if (verdict != Verdict::kTakenOver) return pass();
  return with_mpi_errors(*interposer, comm, [&] { run(*interposer, membership); });
}

/// A blocking call of `bytes`: `run(job, wait)` starts its op and awaits it by `wait(work)`.
template <class Judge, class Run, class Pass>
int serve_blocking(Call call, MPI_Comm comm, std::uint64_t bytes, Judge&& judge, Run&& run,
                   Pass&& pass) {
  const auto find = [&](Memberships& memberships) { return memberships.of(comm); };
  const auto run_and_charge = [&](Interposer& interposer,
                                  const std::shared_ptr<Membership>& membership) {
    run(*membership->job, [&](const sluice::Work& work) {
      interposer.progress.wait(work);
      interposer.call_report.charge(call, bytes, work.statistics());
    });
  };
  return serve(call, comm, judge, find, run_and_charge, pass);
}

// ---- moves --------------------------------------------------------------------------------------

/// Bytes as elements that are moved: the wider, the fewer blocks.
struct Words {
  explicit Words(std::uint64_t bytes)
      : type(bytes % 4 == 0 ? ElementType::kInt32 : ElementType::kUInt8),
        count(bytes / sluice::element_bytes(type)) {}

  ElementType type;
  std::uint64_t count;
};

/// Element number `index` of a buffer.
void* element_at(void* buffer, int index, MPI_Datatype type) {
  MPI_Aint lower_bound = 0;
  MPI_Aint extent = 0;
  PMPI_Type_get_extent(type, &lower_bound, &extent);
  return static_cast<std::byte*>(buffer) + index * extent;
}

}  // namespace

int all_reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
               MPI_Comm comm) {
  const Operands operands(count, type, operation);
  return serve_blocking(
      Call::kAllreduce, comm, operands.bytes,
      [&](Interposer& interposer) { return operands.judge(interposer); },
      [&](sluice::Communicator& job, auto&& wait) {
        wait(job.all_reduce(input == MPI_IN_PLACE ? output : input, output, operands.count,
                            operands.elements->type, {.reduction = operands.elements->reduction}));
      },
      [&] { return PMPI_Allreduce(input, output, count, type, operation, comm); });
}

int iall_reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
                MPI_Comm comm, MPI_Request* request) {
  const Operands operands(count, type, operation);
  return serve(
      Call::kIallreduce, comm,
      [&](Interposer& interposer) {
        const Verdict verdict = operands.judge(interposer);
        const bool only_threads_lack =
            verdict == Verdict::kTakenOver && !interposer.terms.thread_multiple;
        return only_threads_lack ? Verdict::kThreads : verdict;
      },
      [&](Memberships& memberships) { return memberships.known(comm); },
      [&](Interposer& interposer, const std::shared_ptr<Membership>& membership) {
        const sluice::Work work = membership->job->all_reduce(
            input == MPI_IN_PLACE ? output : input, output, operands.count, operands.elements->type,
            {.reduction = operands.elements->reduction});
        *request = interposer.requests.start(work, operands.bytes, membership);
      },
      [&] { return PMPI_Iallreduce(input, output, count, type, operation, comm, request); });
}

int broadcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  const std::uint64_t bytes = bytes_of(count, type);
  return serve_blocking(
      Call::kBcast, comm, bytes,
      [&](Interposer& interposer) {
        return is_rank(root, comm) ? on_move(interposer.terms, bytes) : Verdict::kCommunicator;
      },
      [&](sluice::Communicator& job, auto&& wait) {
        const bool is_root = job.rank() == root;
        const Words words(bytes);
        PackedElements packed(buffer, count, type, comm);
        if (is_root) packed.pack();
        wait(job.broadcast(packed.data(), words.count, words.type,
                           static_cast<std::uint16_t>(root)));
        if (!is_root) packed.unpack();
      },
      [&] { return PMPI_Bcast(buffer, count, type, root, comm); });
}

int reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
           int root, MPI_Comm comm) {
  const Operands operands(count, type, operation);
  return serve_blocking(
      Call::kReduce, comm, operands.bytes,
      [&](Interposer& interposer) {
        return is_rank(root, comm) ? operands.judge(interposer) : Verdict::kCommunicator;
      },
      [&](sluice::Communicator& job, auto&& wait) {
        wait(job.reduce(input == MPI_IN_PLACE ? output : input,
                        job.rank() == root ? output : nullptr, operands.count,
                        operands.elements->type, static_cast<std::uint16_t>(root),
                        {.reduction = operands.elements->reduction}));
      },
      [&] { return PMPI_Reduce(input, output, count, type, operation, root, comm); });
}

int all_gather(const void* input, int input_count, MPI_Datatype input_type, void* output,
               int output_count, MPI_Datatype output_type, MPI_Comm comm) {
  const auto pass = [&] {
    return PMPI_Allgather(input, input_count, input_type, output, output_count, output_type, comm);
  };
  if (comm == MPI_COMM_NULL) return pass();
  const bool is_in_place = input == MPI_IN_PLACE;
  const std::uint64_t own_bytes = bytes_of(output_count, output_type);
  const std::uint64_t bytes = own_bytes * static_cast<std::uint64_t>(ranks_in(comm));
  return serve_blocking(
      Call::kAllgather, comm, bytes,
      [&](Interposer& interposer) {
        const bool sizes_agree = is_in_place || bytes_of(input_count, input_type) == own_bytes;
        if (sizes_agree) return on_move(interposer.terms, bytes);
        interposer.call_report.lacks("MPI_Allgather of unequal sizes");
        return Verdict::kElements;
      },
      [&](sluice::Communicator& job, auto&& wait) {
        PackedElements all(output, output_count * job.world_size(), output_type, comm);
        PackedElements own =
            is_in_place ? PackedElements(element_at(output, output_count * job.rank(), output_type),
                                         output_count, output_type, comm)
                        : PackedElements(const_cast<void*>(input), input_count, input_type, comm);
        own.pack();
        const Words words(own_bytes);
        const std::vector<std::uint64_t> counts(job.world_size(), words.count);
        wait(job.all_gather(own.data(), all.data(), counts, words.type));
        all.unpack();
      },
      pass);
}

int barrier(MPI_Comm comm) {
  return serve(
      Call::kBarrier, comm,
      [](Interposer& interposer) {
        return interposer.terms.barriers ? Verdict::kTakenOver : Verdict::kNotAskedFor;
      },
      [&](Memberships& memberships) { return memberships.known(comm); },
      [&](Interposer& interposer, const std::shared_ptr<Membership>& membership) {
        const sluice::Work work = membership->job->barrier();
        interposer.progress.wait(work);
        interposer.call_report.charge(Call::kBarrier, 0, work.statistics());
      },
      [&] { return PMPI_Barrier(comm); });
}

}  // namespace sluice_mpi
