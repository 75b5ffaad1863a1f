#include "worker/hierarchy/host_id.hpp"

#include <fstream>

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/version.hpp"

namespace sluice::worker::hierarchy {

std::uint64_t host_id(const std::string& name) {
  struct stat memory {};
  struct stat processes {};
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty() || stat("/dev/shm", &memory) != 0 || stat("/proc/self/ns/pid", &processes) != 0)
    return 0;
  std::uint64_t hash = 0xCBF2'9CE4'8422'2325;  // FNV-1a
  for (const std::string& word : std::initializer_list<std::string>{
           name, boot, std::to_string(memory.st_dev), std::to_string(memory.st_ino),
           std::to_string(processes.st_ino), std::to_string(geteuid()), build_id()})
    for (const char c : word + '\n')
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01B3;
  return hash == 0 ? 1 : hash;
}

}  // namespace sluice::worker::hierarchy
