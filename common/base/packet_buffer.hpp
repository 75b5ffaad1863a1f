// What the engines ask of packet buffers and of the way out. DPDK's mbufs and the simulator's
// byte vectors both model these concepts, so the engines run unchanged on either.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "common/base/endpoint.hpp"

namespace sluice {

/// A counted reference to the bytes of one datagram. Moving passes the reference on, `share` makes
/// another, destroying gives it back. An empty one (default made, moved from, or from an empty
/// pool) is false. Bytes are written only while the reference is the only one.
template <class B>
concept PacketBuffer = std::movable<B> && std::default_initializable<B> &&
    requires(B buffer, const B& constant, std::size_t size) {
  { static_cast<bool>(constant) } -> std::same_as<bool>;
  { constant.bytes() } -> std::same_as<std::span<const std::byte>>;
  { buffer.writable() } -> std::same_as<std::span<std::byte>>;
  { constant.share() } -> std::same_as<B>;
  buffer.truncate(size);  // keeps the first `size` bytes
};

/// The way out of an engine. `allocate` gives a buffer of exactly `size` writable bytes, or an
/// empty one when the pool is empty; `send` never blocks: what the port cannot take now is queued
/// by the sink or counted and dropped, and the protocol recovers.
template <class S>
concept PacketSink = PacketBuffer<typename S::Buffer> &&
    requires(S& sink, std::size_t size, const Endpoint& to, typename S::Buffer buffer) {
  { sink.allocate(size) } -> std::same_as<typename S::Buffer>;
  sink.send(to, std::move(buffer));
};

/// A way out that can also send a buffer's only reference and give one back, to be read from and
/// not to be sent.
template <class S>
concept KeepingSink = PacketSink<S> &&
    requires(S& sink, const Endpoint& to, typename S::Buffer buffer) {
  { sink.send_and_keep(to, std::move(buffer)) } -> std::same_as<typename S::Buffer>;
};

}  // namespace sluice
