// Tells whether an object was made in this process, or in one from which this was forked. A forked
// child has no thread of its parent, and shares its packet memory and sockets: it must not use
// them.
#pragma once

namespace sluice {

/// The number of forks between the process that first called this and the caller. Costs one load.
unsigned fork_generation();

/// While it lives, children that this process forks close a descriptor at once. So a lock or a port
/// that it holds ends with this process, even if children live on.
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
