// The functions of MPI for C that a preloaded libsluice-mpi.so puts before the library's own.
#include <mpi.h>

#include "bindings/mpi/collectives.hpp"
#include "bindings/mpi/interposer.hpp"
#include "bindings/mpi/memory.hpp"

using sluice_mpi::Interposer;

int MPI_Init(int* argc, char*** argv) {
  const int code = PMPI_Init(argc, argv);
  if (code == MPI_SUCCESS) Interposer::open();
  return code;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  if (code == MPI_SUCCESS) Interposer::open();
  return code;
}

int MPI_Finalize(void) {
  Interposer::close();
  return PMPI_Finalize();
}

int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                  MPI_Comm comm) {
  return sluice_mpi::all_reduce(sendbuf, recvbuf, count, datatype, op, comm);
}

int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  return sluice_mpi::iall_reduce(sendbuf, recvbuf, count, datatype, op, comm, request);
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  return sluice_mpi::broadcast(buffer, count, datatype, root, comm);
}

int MPI_Reduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
               int root, MPI_Comm comm) {
  return sluice_mpi::reduce(sendbuf, recvbuf, count, datatype, op, root, comm);
}

int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                  int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  return sluice_mpi::all_gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}

int MPI_Barrier(MPI_Comm comm) {
  return sluice_mpi::barrier(comm);
}

int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void* baseptr) {
  return sluice_mpi::allocate_memory(size, info, baseptr);
}

int MPI_Free_mem(void* base) {
  return sluice_mpi::free_memory(base);
}
