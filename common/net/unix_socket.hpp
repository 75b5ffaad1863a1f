// What the kernel tells of this process's Unix sockets.
#pragma once

#include <optional>
#include <string>

namespace sluice::net {

/// The path to which this end of a Unix socket, or its other end, is bound; empty for an end
/// without one, as that of a client is. None: it is no such socket, or has no other end.
std::optional<std::string> own_path(int descriptor);
std::optional<std::string> peer_path(int descriptor);

/// Whether the descriptor is a connection that was accepted at the socket at `path`. Its client may
/// have ended it already.
bool is_accepted_at(const std::string& path, int descriptor);

/// Such a descriptor of this process; -1: there is none. Looks at all descriptors. None: they
/// cannot be listed, as there is no /proc, or no descriptor left to read it.
std::optional<int> find_accepted_at(const std::string& path);

}  // namespace sluice::net
