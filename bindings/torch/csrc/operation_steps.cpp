#include "bindings/torch/csrc/operation_steps.hpp"

#include <memory>
#include <utility>

#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

/// What each rank sends to each: [from * ranks + to], as all_to_all takes it.
Counts matrix_of(const std::vector<std::int64_t>& rows, std::size_t ranks,
                 const Elements& elements) {
  Counts matrix(ranks * ranks);
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::int64_t sent = rows[from * 2 * ranks + to];
      const std::int64_t expected = rows[to * 2 * ranks + ranks + from];
      if (sent != expected)
        throw failure("all_to_all: rank " + std::to_string(from) + " sends " +
                      std::to_string(sent) + " elements to rank " + std::to_string(to) +
                      ", which expects " + std::to_string(expected));
      matrix[from * ranks + to] = elements.of(sent);
    }
  return matrix;
}

}  // namespace

sluice::ReduceOptions reducing(const Reducing& kind, std::uint64_t tag,
                               sluice::DeviceTensors* device) {
  return {.reduction = kind.reduction, .tag = tag, .device = device};
}

Counts counts_of(const Elements& elements, const Tensors& parts) {
  Counts counts;
  counts.reserve(parts.size());
  for (const at::Tensor& part : parts) counts.push_back(elements.of(part.numel()));
  return counts;
}

Step all_reduce_step(const at::Tensor& host, const Reducing& kind, std::uint64_t tag) {
  return [=](sluice::Communicator& job, sluice::DeviceTensors* device) {
    return job.all_reduce(host.data_ptr(), host.data_ptr(), kind.elements.of(host.numel()),
                          kind.elements.type, reducing(kind, tag, device));
  };
}

Step all_gather_step(const at::Tensor& from, const at::Tensor& to, Counts counts,
                     const Elements& elements, std::uint64_t tag) {
  return [=, counts = std::move(counts)](sluice::Communicator& job, sluice::DeviceTensors* device) {
    return job.all_gather(from.data_ptr(), to.data_ptr(), counts, elements.type,
                          {.tag = tag, .device = device});
  };
}

Step reduce_scatter_step(const at::Tensor& from, const at::Tensor& to, Counts counts,
                         const Reducing& kind, std::uint64_t tag) {
  return [=, counts = std::move(counts)](sluice::Communicator& job, sluice::DeviceTensors* device) {
    return job.reduce_scatter(from.data_ptr(), to.data_ptr(), counts, kind.elements.type,
                              reducing(kind, tag, device));
  };
}

std::vector<Step> all_to_all_steps(const at::Tensor& from, const at::Tensor& to,
                                   std::vector<std::int64_t> sent,
                                   const std::vector<std::int64_t>& received,
                                   const Elements& elements, std::uint64_t tag) {
  const std::size_t ranks = sent.size();
  auto row = std::move(sent);
  row.insert(row.end(), received.begin(), received.end());
  const auto rows = std::make_shared<std::vector<std::int64_t>>(row.size() * ranks);
  return {[=](sluice::Communicator& job, sluice::DeviceTensors*) {
            return job.all_gather(row.data(), rows->data(), Counts(ranks, row.size()),
                                  sluice::ElementType::kInt64, {.tag = tag});
          },
          [=](sluice::Communicator& job, sluice::DeviceTensors* device) {
            return job.all_to_all(from.data_ptr(), to.data_ptr(), matrix_of(*rows, ranks, elements),
                                  elements.type, {.tag = tag, .device = device});
          }};
}

}  // namespace sluice_torch
