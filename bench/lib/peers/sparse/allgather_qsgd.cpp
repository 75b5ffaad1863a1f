// AllGather of QSGD: each rank quantises its whole dense vector, all are gathered, and each rank
// adds them up. QSGD knows no pairs: zeros are levels like others.

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/qsgd.hpp"

namespace sparse {
namespace {

class AllgatherQsgd : public Algorithm {
 public:
  AllgatherQsgd(const Job& job, int bits) : Algorithm(job), bits_(bits) {}

  Stream sum(const Input& own) override {
    Dense values = zeros(job_.elements);
    add_pairs(own.pairs, 0, values);
    const Buffer<std::uint8_t> quantised = qsgd::encode(values, bits_, ++seed_);
    const auto parts = std::size_t(network().ranks());
    Buffer<std::uint8_t> all(parts * quantised.size());
    network().all_gather_parts<std::uint8_t>(
        quantised, std::vector<std::size_t>(parts, quantised.size()), all.data());
    qsgd::decode(std::span(all).first(quantised.size()), bits_, values);
    for (std::size_t part = 1; part < parts; ++part)
      qsgd::decode_and_add(std::span(all).subspan(part * quantised.size(), quantised.size()), bits_,
                           values);
    return {true, {}, std::move(values)};
  }

  // (P-1) vectors of N values of b bits, with a scale of 4 bytes for each bucket.
  double bound_bytes() const override {
    return (ranks() - 1) * double(qsgd::bytes(job_.elements, bits_));
  }

  /// The ranks' errors add up.
  Dense allowed_errors(const Dense& own, const Dense& /*exact*/) const override {
    Dense errors = qsgd::error_bounds(own, bits_);
    MPI_Allreduce(MPI_IN_PLACE, errors.data(), int(errors.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    return errors;
  }

 private:
  int bits_;
  std::uint64_t seed_ = job_.seed * 1000 + std::uint64_t(job_.network->rank()) * 1'000'000;
};

}  // namespace

std::unique_ptr<Algorithm> make_allgather_qsgd(const Job& job, int bits) {
  return std::make_unique<AllgatherQsgd>(job, bits);
}

}  // namespace sparse
