/// The interface of every algorithm: it sums the ranks' streams, says how many bytes its paper
/// promises, and how inexact an element may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/lib/peers/sparse/network.hpp"
#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {

struct Job {
  Network* network;
  std::uint32_t elements;  // of the dense vector, N
  std::size_t k;           // pairs of a rank
  std::uint64_t seed;
  std::uint32_t tau, tau_prime;  // Ok-Topk: steps between new ranges, and between new thresholds
};

/// A rank's gradient in both forms; `values` only for algorithms that start with these.
struct Input {
  Pairs pairs;
  Dense values;
};

class Algorithm {
 public:
  explicit Algorithm(const Job& job) : job_(job) {}
  virtual ~Algorithm() = default;

  /// This is timed.
  virtual Stream sum(const Input& own) = 0;

  /// Bytes per rank and direction: payload without counts, if keys are spread evenly and no two
  /// ranks have a common key.
  virtual double bound_bytes() const = 0;

  /// How far each element of the sum may differ from `exact`; empty: not at all.
  virtual Dense allowed_errors(const Dense& /*own*/, const Dense& /*exact*/) const { return {}; }

  /// Adds `factor` times what this rank has kept for the next step.
  virtual void add_kept(float /*factor*/, Dense& /*to*/) const {}

  /// Non-zero elements of a rank's input, and whether it starts with the dense vector.
  virtual std::size_t nonzeros() const { return job_.k; }
  virtual bool starts_dense() const { return false; }
  /// Whether it delivers only about k pairs, and after how many steps it does.
  virtual bool delivers_k() const { return false; }
  virtual int settling_steps() const { return 0; }

 protected:
  Network& network() const { return *job_.network; }
  double ranks() const { return job_.network->ranks(); }
  double k_bytes() const { return double(job_.k) * sizeof(Pair); }
  double dense_bytes() const { return double(job_.elements) * sizeof(float); }

  Job job_;
};

std::unique_ptr<Algorithm> make_ssar_recursive_doubling(const Job& job);
std::unique_ptr<Algorithm> make_ssar_split_allgather(const Job& job);
/// `bits` 32: not quantised.
std::unique_ptr<Algorithm> make_dsar_split_allgather(const Job& job, int bits);
std::unique_ptr<Algorithm> make_allgather_pairs(const Job& job);
std::unique_ptr<Algorithm> make_allgather_qsgd(const Job& job, int bits);
std::unique_ptr<Algorithm> make_ok_topk(const Job& job);
std::unique_ptr<Algorithm> make_ok_topk_from_dense(const Job& job);

/// By name; names of all.
std::unique_ptr<Algorithm> make_algorithm(const std::string& name, const Job& job);
std::vector<std::string> algorithm_names();

}  // namespace sparse
