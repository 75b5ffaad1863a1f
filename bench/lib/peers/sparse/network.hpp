/// MPI's calls for the algorithms, with counters: payload bytes at the level of the call. In a
/// gather, each rank sends its part to every other one, whichever way Open MPI uses for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

namespace sparse {

struct Traffic {
  std::uint64_t sent = 0, received = 0;  // bytes
};

/// MPI counts in int: each element is one unit, so the limit is 2^31 elements, not bytes.
template <class T>
MPI_Datatype type_of() {
  static const MPI_Datatype type = [] {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(int(sizeof(T)), MPI_BYTE, &made);
    MPI_Type_commit(&made);
    return made;
  }();
  return type;
}

class Network {
 public:
  using Requests = std::vector<MPI_Request>;

  Network() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// The rank `places` after this one.
  int after(int places) const { return (rank_ + places) % ranks_; }
  int before(int places) const { return (rank_ + ranks_ - places) % ranks_; }

  template <class T>
  void start_send(int to, std::span<const T> out, Requests& requests) {
    if (out.empty()) return;
    traffic_.sent += out.size_bytes();
    MPI_Isend(out.data(), int(out.size()), type_of<T>(), to, 0, MPI_COMM_WORLD,
              &requests.emplace_back());
  }

  template <class T>
  void start_receive(int from, std::span<T> in, Requests& requests) {
    if (in.empty()) return;
    traffic_.received += in.size_bytes();
    MPI_Irecv(in.data(), int(in.size()), type_of<T>(), from, 0, MPI_COMM_WORLD,
              &requests.emplace_back());
  }

  static void wait(Requests& requests) {
    MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    requests.clear();
  }

  template <class T>
  std::vector<T> all_gather(T own) {
    std::vector<T> all(static_cast<std::size_t>(ranks_));
    count(sizeof(T) * others(), sizeof(T) * others());
    MPI_Allgather(&own, 1, type_of<T>(), all.data(), 1, type_of<T>(), MPI_COMM_WORLD);
    return all;
  }

  /// Parts of `counts` elements, one after another in `all`; `own` may lie there already.
  template <class T>
  void all_gather_parts(std::span<const T> own, const std::vector<std::size_t>& counts, T* all) {
    std::vector<int> lengths, places;
    std::size_t total = 0;
    for (const std::size_t length : counts) {
      lengths.push_back(int(length));
      places.push_back(int(total));
      total += length;
    }
    count(own.size_bytes() * others(), (total - own.size()) * sizeof(T));
    const bool in_place = own.data() == all + places[std::size_t(rank_)];
    MPI_Allgatherv(in_place ? MPI_IN_PLACE : own.data(), int(own.size()), type_of<T>(), all,
                   lengths.data(), places.data(), type_of<T>(), MPI_COMM_WORLD);
  }

  /// Element r of `out` goes to rank r.
  template <class T>
  std::vector<T> all_to_all(const std::vector<T>& out) {
    std::vector<T> in(out.size());
    count(sizeof(T) * others(), sizeof(T) * others());
    MPI_Alltoall(out.data(), 1, type_of<T>(), in.data(), 1, type_of<T>(), MPI_COMM_WORLD);
    return in;
  }

  void all_reduce(std::vector<std::int64_t>& numbers) {
    count(numbers.size() * sizeof numbers[0], numbers.size() * sizeof numbers[0]);
    MPI_Allreduce(MPI_IN_PLACE, numbers.data(), int(numbers.size()), MPI_INT64_T, MPI_SUM,
                  MPI_COMM_WORLD);
  }

  /// Since the last call.
  Traffic take_traffic() {
    const Traffic taken = traffic_;
    traffic_ = {};
    return taken;
  }

 private:
  std::size_t others() const { return std::size_t(ranks_ - 1); }
  void count(std::size_t sent, std::size_t received) {
    traffic_.sent += sent;
    traffic_.received += received;
  }

  int rank_ = 0, ranks_ = 0;
  Traffic traffic_;
};

}  // namespace sparse
