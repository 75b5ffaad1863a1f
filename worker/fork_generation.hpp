// Whether what a process holds was made in it, or in one that it was forked from. A forked child
// has none of its parent's threads and shares its packet memory and sockets: it must touch none.
#pragma once

namespace sluice {

/// How many forks lie between the process that asked first and this one. Costs one load.
unsigned fork_generation();

}  // namespace sluice
