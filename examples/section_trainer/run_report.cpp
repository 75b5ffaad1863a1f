#include "examples/section_trainer/run_report.hpp"

#include <algorithm>
#include <cstdio>
#include <ostream>

#include "examples/section_trainer/table.hpp"

namespace section_trainer {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(), pattern, values...);
  return line.data();
}

/// Bytes that ranks send and receive in all when every parameter travels: each way once a rank.
double dense_bytes(std::size_t ranks, std::size_t exchanges) {
  return 2.0 * double(ranks) * double(exchanges) * double(kParameters * sizeof(float));
}

double share_in_commonest_section(const std::vector<Record>& records) {
  const auto n = std::count_if(records.begin(), records.end(),
                               [](const Record& record) { return record.section == 0; });
  return records.empty() ? 0.0 : double(n) / double(records.size());
}

}  // namespace

Report::Report(std::ostream& out, const Dataset& data, const Plan& plan, std::size_t ranks)
    : out_(out),
      data_(data),
      plan_(plan),
      ranks_(ranks),
      steps_(plan.steps(data.train.size())),
      majority_share_(share_in_commonest_section(data.held_out)) {}

void Report::opening() const {
  out_ << format("%zu package descriptions to learn from, %zu held out, %zu sections\n",
                 data_.train.size(), data_.held_out.size(), data_.sections.size())
       << format("%zu parameters (%.1f MB of gradients a step), %zu ranks, %zu steps an epoch\n",
                 kParameters, double(kParameters * sizeof(float)) / 1e6, ranks_, steps_)
       << format("always answering \"%s\" would be right for %.1f %%\n\n",
                 data_.sections.front().c_str(), 100 * majority_share_)
       << "       |       | held-out |  density  | density |  bytes on   | a dense  | seconds in | "
          "seconds\n"
       << " epoch |  loss | accuracy | of a rank | of sum  |  the wire   | exchange | all_reduce | "
          "computing\n"
       << std::flush;
}

void Report::step(std::size_t epoch, std::size_t step, double loss) {
  const auto now = std::chrono::steady_clock::now();
  if (now - spoke_ < std::chrono::seconds(1)) return;
  spoke_ = now;
  out_ << format(" %5zu | step %zu of %zu, loss %.3f\n", epoch + 1, step + 1, steps_, loss)
       << std::flush;
}

void Report::epoch(std::size_t epoch, const Figures& totals) {
  accuracy_ = totals[kCorrect] / double(std::max<std::size_t>(1, data_.held_out.size()));
  for (std::size_t i = 0; i < kFigureCount; ++i) run_[i] += totals[i];
  out_ << format(
              " %5zu | %5.3f |  %5.1f %% |  %6.2f %% | %5.2f %% | %8.1f MB | %5.1f GB | %10.2f "
              "| %8.2f\n",
              epoch + 1, totals[kLoss] / double(data_.train.size()), 100 * accuracy_,
              100 * totals[kBlocksSent] / totals[kBlocks],
              100 * totals[kBlocksReceived] / totals[kBlocks], totals[kWireBytes] / 1e6,
              dense_bytes(ranks_, steps_) / 1e9, totals[kExchangeSeconds] / double(ranks_),
              totals[kComputeSeconds] / double(ranks_))
       << std::flush;
}

void Report::closing() const {
  const double dense = dense_bytes(ranks_, steps_ * plan_.epochs);
  out_ << format(
              "\n%.2f GB travelled where dense exchanges would have taken %.1f GB: %.1f times "
              "less (%.2f %% saved)\n",
              run_[kWireBytes] / 1e9, dense / 1e9, dense / run_[kWireBytes],
              100 * (1 - run_[kWireBytes] / dense))
       << format("a rank spent %.1f s in all_reduce and %.1f s computing\n",
                 run_[kExchangeSeconds] / double(ranks_), run_[kComputeSeconds] / double(ranks_))
       << std::flush;
}

}  // namespace section_trainer
