// Information from the kernel about this process's Unix sockets.
#pragma once

#include <optional>
#include <string>

namespace sluice::net {

/// The path to which this end of a Unix socket, or its other end, is bound; empty if neither is
/// bound, as with a client. Nothing if it is not such a socket, or has no other end.
std::optional<std::string> own_path(int descriptor);
std::optional<std::string> peer_path(int descriptor);

/// Whether the descriptor is a connection that was accepted at the socket at `path`. The client may
/// have closed it already.
bool is_accepted_at(const std::string& path, int descriptor);

/// Such a descriptor of this process; -1 if there is none. Looks at all descriptors. Nothing if
/// they cannot be listed: there is no /proc, or no descriptor left to read it.
std::optional<int> find_accepted_at(const std::string& path);

}  // namespace sluice::net
