// Elements of any datatype as one run of bytes, in the order of their type signature: so ranks that
// describe the same elements by different datatypes, as MPI allows, move the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <mpi.h>

namespace sluice_mpi {

/// An error that MPI has reported already: the call returns its code.
struct MpiFailure {
  int code;
};

/// Of a call's elements; 0 for a datatype or a count that is none.
std::uint64_t bytes_of(std::uint64_t count, MPI_Datatype type);

class PackedElements {
 public:
  /// Of predefined types without gaps it is the caller's memory itself, of others a copy. At most
  /// INT_MAX bytes. Throws MpiFailure if MPI does not take the type, which is not committed: on
  /// every rank, before an op begins that some would wait for.
  PackedElements(void* elements, int count, MPI_Datatype type, MPI_Comm comm);

  std::byte* data() { return copy_ ? copy_.get() : static_cast<std::byte*>(elements_); }

  void pack();    ///< from the caller's memory; throws MpiFailure
  void unpack();  ///< to the caller's memory; throws MpiFailure

 private:
  void* const elements_;
  const int count_;
  const MPI_Datatype type_;
  const MPI_Comm comm_;
  const int bytes_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace sluice_mpi
