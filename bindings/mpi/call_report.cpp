#include "bindings/mpi/call_report.hpp"

#include <algorithm>
#include <cstdio>

namespace sluice_mpi {
namespace {

constexpr std::array<const char*, kCalls> kCallNames{
    "MPI_Allreduce", "MPI_Iallreduce", "MPI_Bcast", "MPI_Reduce", "MPI_Allgather", "MPI_Barrier",
};
constexpr std::array<const char*, kVerdicts> kVerdictNames{
    "taken over", "small",  "large",   "datatype or operation", "communicator",
    "refused",    "no job", "threads", "not asked for",
};
constexpr auto kTakenOver = std::size_t(Verdict::kTakenOver);

}  // namespace

std::string CallReport::report(const std::string& world, std::uint64_t min_bytes) const {
  char head[80];
  std::snprintf(head, sizeof head, "  %-14s %10s %16s %16s  %s\n", "call", "taken over",
                "tensor bytes", "bytes sent", "passed through");
  std::string text = "sluice-mpi: rank 0 of " + world + "\n" + head;
  for (std::size_t call = 0; call < kCalls; ++call) text += line(kCallNames[call], accounts_[call]);
  if (has(Verdict::kSmall))
    text += "  small: fewer bytes than SLUICE_MPI_MIN_BYTES=" + std::to_string(min_bytes) + "\n";
  std::string lacking;
  const std::lock_guard lock(mutex_);
  for (const auto& [what, calls] : lacking_)
    lacking += (lacking.empty() ? "" : ", ") + std::to_string(calls) + " " + what;
  if (!lacking.empty()) text += "  datatype or operation: " + lacking + "\n";
  if (has(Verdict::kNotAskedFor))
    text += "  not asked for: SLUICE_MPI_BARRIER=on takes barriers over\n";
  return text;
}

bool CallReport::has(Verdict verdict) const {
  return std::ranges::any_of(accounts_, [verdict](const Account& account) {
    return account.verdicts[std::size_t(verdict)] != 0;
  });
}

std::string CallReport::line(const char* name, const Account& account) {
  std::string passed;
  for (std::size_t verdict = kTakenOver + 1; verdict < kVerdicts; ++verdict)
    if (const std::uint64_t calls = account.verdicts[verdict])
      passed += (passed.empty() ? "" : ", ") + std::to_string(calls) + " " + kVerdictNames[verdict];
  const std::uint64_t taken = account.verdicts[kTakenOver];
  if (taken == 0 && passed.empty()) return "";
  char start[96];
  std::snprintf(start, sizeof start, "  %-14s %10llu %16llu %16llu  ", name,
                static_cast<unsigned long long>(taken),
                static_cast<unsigned long long>(account.tensor_bytes),
                static_cast<unsigned long long>(account.bytes_sent));
  return start + (passed.empty() ? "0" : passed) + "\n";
}

}  // namespace sluice_mpi
