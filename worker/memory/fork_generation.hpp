// Whether what a process holds was made in it, or in one that it was forked from. A forked child
// has none of its parent's threads and shares its packet memory and sockets: it must touch none.
#pragma once

namespace sluice {

/// How many forks lie between the process that asked first and this one. Costs one load.
unsigned fork_generation();

/// While it lives, children forked from this process close a descriptor at once: so a lock or a
/// port that it holds ends with this process, whatever children live on.
class ClosedInChildren {
 public:
  explicit ClosedInChildren(int descriptor);
  ~ClosedInChildren();
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;

 private:
  const int descriptor_;
};

}  // namespace sluice
