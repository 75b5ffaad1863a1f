// What the functions of sluice.h share: no exception gets out, but becomes a status; handles and
// structs of the caller are checked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <pthread.h>

#include <sluice/error.hpp>
#include <sluice/sluice.h>

#include "bindings/c/to_c.hpp"

namespace sluice::c {

static_assert(sizeof(sluice_error) == 512);

/// Cuts between characters of UTF-8.
inline void copy_message(std::string_view text, sluice_error& error) {
  std::size_t length = std::min(text.size(), sizeof error.message - 1);
  if (length < text.size())
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  std::memcpy(error.message, text.data(), length);
  error.message[length] = '\0';
}

inline sluice_status tell(sluice_error* out, const Error& error) {
  const sluice_status status = to_c(error.code());
  if (out == nullptr) return status;
  *out = {};
  out->status = status;
  out->rank = error.rank() ? std::int32_t{*error.rank()} : -1;
  out->op = error.op() ? static_cast<std::int64_t>(*error.op()) : -1;
  out->last_heard_ms = error.last_heard() ? std::int64_t{error.last_heard()->count()} : -1;
  copy_message(error.what(), *out);
  return status;
}

/// Without memory for more than this.
inline sluice_status tell(sluice_error* out, std::string_view what) {
  if (out != nullptr) {
    *out = {.status = SLUICE_UNAVAILABLE, .rank = -1, .op = -1, .last_heard_ms = -1, .message = {}};
    copy_message(what, *out);
  }
  return SLUICE_UNAVAILABLE;
}

/// While it lives the thread cannot be cancelled, which would unwind through what must not be.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// Runs it; what it throws becomes the status.
template <class Body>
sluice_status guarded(sluice_error* error, Body&& body) noexcept {
  const NoCancellation to_the_end;
  try {
    body();
    return SLUICE_OK;
  } catch (const Error& thrown) {
    return tell(error, thrown);
  } catch (const std::bad_alloc&) {
    return tell(error, "out of memory");
  } catch (const std::exception& thrown) {
    return tell(error, thrown.what());
  } catch (...) {
    return tell(error, "an unknown exception");
  }
}

[[noreturn]] inline void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, why);
}

template <class T>
T& given(T* pointer, const char* call, const char* what) {
  if (pointer == nullptr) refuse(std::string(call) + ": " + what + " is null");
  return *pointer;
}

/// Nothing of a null pointer, if there are no elements.
template <class T>
std::span<T> elements_of(T* pointer, std::uint64_t count, const char* call, const char* what) {
  if (count == 0) return {};
  return {&given(pointer, call, what), count};
}

inline std::span<float> residual_of(float* residual, std::uint64_t count) {
  return residual == nullptr ? std::span<float>() : std::span(residual, count);
}

/// What is to be told in a struct of the caller's, which may be of another version.
inline void check_size(std::size_t size, std::size_t ours, const char* call, const char* what) {
  if (size != ours)
    refuse(std::string(call) + ": " + what + " has " + std::to_string(size) + " bytes, " +
           std::to_string(ours) + " expected: is its size set?");
}

}  // namespace sluice::c
