// SparCML's SSAR by recursive doubling: in step t, ranks at distance 2^t exchange all that they
// have. The paper needs a power of two. Here each rank beyond the largest power of two gives its
// stream to another rank before the first step, and gets the sum after the last one.
#include <algorithm>
#include <bit>
#include <utility>

#include "bench/lib/peers/sparse/algorithm.hpp"

namespace sparse {
namespace {

class RecursiveDoubling : public Algorithm {
 public:
  using Algorithm::Algorithm;

  Stream sum(const Input& own) override {
    const int core = int(std::bit_floor(unsigned(network().ranks())));
    const int rank = network().rank();
    Stream stream{false, own.pairs, {}};
    if (rank >= core) {
      send(rank - core, stream);
      return receive(rank - core);
    }
    const bool has_other = rank + core < network().ranks();
    if (has_other) add(stream, receive(rank + core));
    for (int distance = 1; distance < core; distance *= 2) {
      Stream other = exchange(rank ^ distance, stream);
      add(stream, std::move(other));
    }
    if (has_other) send(rank + core, stream);
    return stream;
  }

  // Step t sends at most min(2^t k pairs, N values), twice as many pairs if ranks were added
  // before; those get the sum at the end: min(P k pairs, N values).
  double bound_bytes() const override {
    const double core = std::bit_floor(unsigned(ranks()));
    const double at_first = core < ranks() ? 2 * k_bytes() : k_bytes();
    double bytes = 0;
    for (double streams = 1; streams < core; streams *= 2)
      bytes += std::min(streams * at_first, dense_bytes());
    return core < ranks() ? bytes + std::min(ranks() * k_bytes(), dense_bytes()) : bytes;
  }

 private:
  struct Header {
    std::uint64_t is_dense, pairs;
  };

  static Header header_of(const Stream& stream) { return {stream.is_dense, stream.pairs.size()}; }

  Stream room_for(Header header) const {
    Stream stream{header.is_dense != 0, Pairs(header.pairs), {}};
    if (stream.is_dense) stream.values.resize(job_.elements);
    return stream;
  }

  Stream exchange(int other, const Stream& out) {
    const Header own = header_of(out);
    Header theirs{};
    Network::Requests requests;
    network().start_receive<Header>(other, {&theirs, 1}, requests);
    network().start_send<Header>(other, {&own, 1}, requests);
    Network::wait(requests);
    Stream in = room_for(theirs);
    start_receive(other, in, requests);
    start_send(other, out, requests);
    Network::wait(requests);
    return in;
  }

  void send(int to, const Stream& stream) {
    const Header header = header_of(stream);
    Network::Requests requests;
    network().start_send<Header>(to, {&header, 1}, requests);
    start_send(to, stream, requests);
    Network::wait(requests);
  }

  Stream receive(int from) {
    Header header{};
    Network::Requests requests;
    network().start_receive<Header>(from, {&header, 1}, requests);
    Network::wait(requests);
    Stream stream = room_for(header);
    start_receive(from, stream, requests);
    Network::wait(requests);
    return stream;
  }

  void start_send(int to, const Stream& stream, Network::Requests& requests) {
    network().start_send<Pair>(to, stream.pairs, requests);
    network().start_send<float>(to, stream.values, requests);
  }

  void start_receive(int from, Stream& stream, Network::Requests& requests) {
    network().start_receive<Pair>(from, stream.pairs, requests);
    network().start_receive<float>(from, stream.values, requests);
  }

  void add(Stream& sum, Stream more) const {
    if (!sum.is_dense && more.is_dense) std::swap(sum, more);
    if (!sum.is_dense) {
      sum = sum_of_runs({sum.pairs, more.pairs}, job_.elements);
    } else if (more.is_dense) {
      for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += more.values[i];
    } else {
      add_pairs(more.pairs, 0, sum.values);
    }
  }
};

}  // namespace

std::unique_ptr<Algorithm> make_ssar_recursive_doubling(const Job& job) {
  return std::make_unique<RecursiveDoubling>(job);
}

}  // namespace sparse
