// Lines to standard error.
#pragma once

#include <cstdio>
#include <string>

namespace sluice_mpi {

/// In one piece, so that the ranks' lines do not mix.
inline void print_line(const std::string& line) {
  std::fputs(("sluice-mpi: " + line + "\n").c_str(), stderr);
}

}  // namespace sluice_mpi
