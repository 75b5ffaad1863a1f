// Calls every function of the public headers that is not inline, so that it links only if the
// library exports them all. Only `main` runs.
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include <sluice/compress.hpp>
#include <sluice/global_top_k.hpp>
#include <sluice/sluice.hpp>

void every_function() {
  auto options = sluice::ContextOptions::from_environment();
  auto job_options = sluice::JobOptions::from_environment();
  if (sluice::ContextOptions::has("mtu")) options.set("mtu", "1500");
  if (sluice::JobOptions::has("job")) job_options.set("job", "7");
  job_options.job = "bert-large";
  sluice::Context context(options);
  const auto shared = sluice::Context::shared(options);
  context.start_timeline("trace.json");
  context.stop_timeline();
  sluice::Communicator job(context, job_options);
  sluice::Communicator other(std::move(job));
  job = std::move(other);
  const std::vector<std::uint64_t> counts(job.world_size(), 1);
  std::vector<float, sluice::Allocator<float>> tensor(1'000);
  tensor.resize(2'000);
  void* const memory = sluice::allocate(job.block_elements(sluice::ElementType::kInt8));
  job.all_reduce(memory, memory, 1, sluice::ElementType::kInt8).wait();
  job.broadcast(memory, 1, sluice::ElementType::kInt8, job.rank()).wait();
  job.all_gather(memory, memory, counts, sluice::ElementType::kInt8).wait();
  job.reduce(memory, memory, 1, sluice::ElementType::kInt8, 0).wait();
  job.reduce_scatter(memory, memory, counts, sluice::ElementType::kInt8).wait();
  job.gather(memory, memory, counts, sluice::ElementType::kInt8, 0).wait();
  job.scatter(memory, memory, counts, sluice::ElementType::kInt8, 0).wait();
  job.all_to_all(memory, memory, counts, sluice::ElementType::kInt8).wait();
  const sluice::SparseWork sparse = job.all_reduce({.keys = counts, .values = memory}, 2);
  if (sparse.keys().empty() || sparse.values<float>().empty()) return;
  if (sparse.size() == 0 || sparse.rejected()[0] != 0) return;
  sparse.copy_to(nullptr, memory, sluice::ElementType::kFloat32);
  sparse.copy_to_dense(memory, 2, sluice::ElementType::kFloat32);
  sluice::GlobalTopK global({.k = 5});
  global.all_reduce(job, tensor, {}, tensor);
  global.start(job, tensor, {});
  if (global.finish().keys().empty()) global.finish(tensor);
  global.set_k(global.sent());
  if (global.threshold() > 0) global.forget();
  const sluice::Work work = job.barrier();
  if (work.wait_for(std::chrono::seconds(1)) && work.done() && !work.error()) work.statistics();
  if (work.stragglers().empty()) return;
  if (work.progress() < 1) work.set_timeout(std::chrono::seconds(1));
  sluice::CompletionQueue completions;
  completions.add(work, 7);
  completions.interrupt();
  if (completions.descriptor() < 0) return;
  if (completions.next(std::chrono::seconds(1)) == 7) return;
  const sluice::SplitWork split = job.split(static_cast<std::int32_t>(job.job_id()));
  job = split.join();
  job = job.duplicate().join();
  if (job.stragglers().size() == 9) job.note_exception();
  if (job.stragglers().empty() || job.statistics().ops_failed != 0) job.abort("why");
  if (job.failure()) return;
  job.leave();
  if (sluice::is_allocated(memory)) sluice::deallocate(memory);
  static_cast<void>(sluice::name(sluice::ErrorCode::kQuota));
  static_cast<void>(sluice::name(*sluice::parse_element_type("half")));
  static_cast<void>(sluice::name(*sluice::parse_reduction("sum")));
  static_cast<void>(sluice::name(*sluice::parse_encoding("half")));
  throw sluice::Error(sluice::ErrorCode::kQuota, "to be caught by others");
}

void every_compressor() {
  std::vector<float> gradients(1'000), parameters(1'000);
  std::vector<std::uint64_t> sent(1);
  const sluice::BlockCompression blocks{
      .gradients = gradients, .out = gradients, .sent_blocks = sent};
  const std::uint64_t k = sluice::share_of(0.5, 4);
  sluice::compress_threshold(blocks, 1);
  sluice::compress_top_k(blocks, k);
  sluice::compress_top_k_ratio(blocks, parameters, k);
  sluice::compress_random_k(blocks, k, 0, 0);
  sluice::SparseElements elements;
  sluice::compress_elements(gradients, {}, 1, elements);
  sluice::ElementTopK top_k({.k = k});
  top_k.compress(gradients, {}, elements);
  top_k.set_k(2);
  if (top_k.threshold() > 0) return;
  sluice::UnionTarget target({.ranks = 2, .units = 4, .unit_bytes = 1036, .bytes = 2072});
  target.measured(1, 2);
  static_cast<void>(target.k());
}

int main(int argc, char**) {
  if (argc > 1) every_function();
  if (argc > 1) every_compressor();
}
