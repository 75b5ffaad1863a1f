#include "common/net/telemetry.hpp"

#include <cassert>
#include <map>
#include <mutex>

#include <rte_telemetry.h>
#include <rte_version.h>

namespace sluice::net {
namespace {

// Never destroyed: DPDK gives a handler no context, never removes one, and may call it while the
// process exits.
std::mutex& mutex = *new std::mutex;
auto& answers = *new std::map<std::string, Telemetry::Answer, std::less<>>;  // guarded by mutex

void add(rte_tel_data* data, const char* name, std::uint64_t value) {
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
  rte_tel_data_add_dict_uint(data, name, value);
#else
  rte_tel_data_add_dict_u64(data, name, value);
#endif
}

int answer(const char* command, const char* parameter, rte_tel_data* data) {
  const std::lock_guard lock(mutex);
  const auto found = answers.find(std::string_view(command));
  if (found == answers.end()) return -1;
  const auto numbers = found->second(parameter == nullptr ? "" : parameter);
  if (!numbers) return -1;
  rte_tel_data_start_dict(data);
  for (const auto& [name, value] : *numbers) add(data, name.c_str(), value);
  return 0;
}

}  // namespace

Telemetry::Telemetry(const std::vector<Command>& commands) {
  const std::lock_guard lock(mutex);
  assert(answers.empty());
  static_assert(kMostNumbers == RTE_TEL_MAX_DICT_ENTRIES);
  for (const Command& command : commands) {
    answers[command.name] = command.answer;
    rte_telemetry_register_cmd(command.name.c_str(), answer, command.help.c_str());
  }
}

Telemetry::~Telemetry() {
  const std::lock_guard lock(mutex);
  answers.clear();
}

}  // namespace sluice::net
