// The same for Fortran, whose functions in Open MPI call the PMPI ones of C and so never come by
// those of c_names.cpp. As they do, these turn handles and special addresses into C's.
//
// Programs with mpif.h or `use mpi` call `mpi_bcast_`; those with `use mpi_f08` call
// `mpi_bcast_f08_` with the same arguments, of which the last, the error, may be absent (null).
#include <mpi.h>

#include "bindings/mpi/collectives.hpp"
#include "bindings/mpi/memory.hpp"

/// Fortran's MPI_IN_PLACE and MPI_BOTTOM are variables that are known by their address.
extern "C" {
extern int mpi_fortran_in_place_;
extern int mpi_fortran_bottom_;
}

namespace {

void* address(const void* argument) {
  if (argument == &mpi_fortran_in_place_) return MPI_IN_PLACE;
  if (argument == &mpi_fortran_bottom_) return MPI_BOTTOM;
  return const_cast<void*>(argument);
}

MPI_Comm comm_of(const MPI_Fint* handle) {
  return PMPI_Comm_f2c(*handle);
}
MPI_Datatype type_of(const MPI_Fint* handle) {
  return PMPI_Type_f2c(*handle);
}
MPI_Op operation_of(const MPI_Fint* handle) {
  return PMPI_Op_f2c(*handle);
}

void tell(MPI_Fint* error, int code) {
  if (error != nullptr) *error = code;
}

}  // namespace

extern "C" {

void mpi_init_(MPI_Fint* error) {
  tell(error, MPI_Init(nullptr, nullptr));
}

void mpi_init_thread_(const MPI_Fint* required, MPI_Fint* provided, MPI_Fint* error) {
  int level = MPI_THREAD_SINGLE;
  tell(error, MPI_Init_thread(nullptr, nullptr, *required, &level));
  *provided = level;
}

void mpi_finalize_(MPI_Fint* error) {
  tell(error, MPI_Finalize());
}

void mpi_allreduce_(const void* input, void* output, const MPI_Fint* count, const MPI_Fint* type,
                    const MPI_Fint* operation, const MPI_Fint* comm, MPI_Fint* error) {
  tell(error, sluice_mpi::all_reduce(address(input), address(output), *count, type_of(type),
                                     operation_of(operation), comm_of(comm)));
}

void mpi_iallreduce_(const void* input, void* output, const MPI_Fint* count, const MPI_Fint* type,
                     const MPI_Fint* operation, const MPI_Fint* comm, MPI_Fint* request,
                     MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = sluice_mpi::iall_reduce(address(input), address(output), *count, type_of(type),
                                           operation_of(operation), comm_of(comm), &started);
  if (code == MPI_SUCCESS) *request = PMPI_Request_c2f(started);
  tell(error, code);
}

void mpi_bcast_(void* buffer, const MPI_Fint* count, const MPI_Fint* type, const MPI_Fint* root,
                const MPI_Fint* comm, MPI_Fint* error) {
  tell(error, sluice_mpi::broadcast(address(buffer), *count, type_of(type), *root, comm_of(comm)));
}

void mpi_reduce_(const void* input, void* output, const MPI_Fint* count, const MPI_Fint* type,
                 const MPI_Fint* operation, const MPI_Fint* root, const MPI_Fint* comm,
                 MPI_Fint* error) {
  tell(error, sluice_mpi::reduce(address(input), address(output), *count, type_of(type),
                                 operation_of(operation), *root, comm_of(comm)));
}

void mpi_allgather_(const void* input, const MPI_Fint* input_count, const MPI_Fint* input_type,
                    void* output, const MPI_Fint* output_count, const MPI_Fint* output_type,
                    const MPI_Fint* comm, MPI_Fint* error) {
  tell(error,
       sluice_mpi::all_gather(address(input), *input_count, type_of(input_type), address(output),
                              *output_count, type_of(output_type), comm_of(comm)));
}

void mpi_barrier_(const MPI_Fint* comm, MPI_Fint* error) {
  tell(error, sluice_mpi::barrier(comm_of(comm)));
}

void mpi_alloc_mem_(const MPI_Aint* bytes, const MPI_Fint* info, void* address_of_pointer,
                    MPI_Fint* error) {
  tell(error, sluice_mpi::allocate_memory(*bytes, PMPI_Info_f2c(*info), address_of_pointer));
}

void mpi_free_mem_(void* memory, MPI_Fint* error) {
  tell(error, sluice_mpi::free_memory(memory));
}

[[gnu::alias("mpi_init_")]] decltype(mpi_init_) mpi_init_f08_;
[[gnu::alias("mpi_init_thread_")]] decltype(mpi_init_thread_) mpi_init_thread_f08_;
[[gnu::alias("mpi_finalize_")]] decltype(mpi_finalize_) mpi_finalize_f08_;
[[gnu::alias("mpi_allreduce_")]] decltype(mpi_allreduce_) mpi_allreduce_f08_;
[[gnu::alias("mpi_iallreduce_")]] decltype(mpi_iallreduce_) mpi_iallreduce_f08_;
[[gnu::alias("mpi_bcast_")]] decltype(mpi_bcast_) mpi_bcast_f08_;
[[gnu::alias("mpi_reduce_")]] decltype(mpi_reduce_) mpi_reduce_f08_;
[[gnu::alias("mpi_allgather_")]] decltype(mpi_allgather_) mpi_allgather_f08_;
[[gnu::alias("mpi_barrier_")]] decltype(mpi_barrier_) mpi_barrier_f08_;
[[gnu::alias("mpi_alloc_mem_")]] decltype(mpi_alloc_mem_) mpi_alloc_mem_cptr_;
[[gnu::alias("mpi_alloc_mem_")]] decltype(mpi_alloc_mem_) mpi_alloc_mem_f08_;
[[gnu::alias("mpi_free_mem_")]] decltype(mpi_free_mem_) mpi_free_mem_f08_;

}  // extern "C"
