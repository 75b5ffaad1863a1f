// A check of the simulation failed: the engines have a defect (or the simulation has).
#pragma once

#include <stdexcept>
#include <string>

namespace sluice::sim {

class Bug : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Bug(what);
}
inline void require(bool holds, const std::string& what) {
  if (!holds) throw Bug(what);
}

}  // namespace sluice::sim
