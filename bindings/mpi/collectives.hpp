// The collectives as MPI's functions of these names are called, for all languages: taken over if
// all ranks may, else passed through.
#pragma once

#include <mpi.h>

namespace sluice_mpi {

int all_reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
               MPI_Comm comm);
int iall_reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
                MPI_Comm comm, MPI_Request* request);
int broadcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int reduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op operation,
           int root, MPI_Comm comm);
int all_gather(const void* input, int input_count, MPI_Datatype input_type, void* output,
               int output_count, MPI_Datatype output_type, MPI_Comm comm);
int barrier(MPI_Comm comm);

}  // namespace sluice_mpi
