// MPI_Alloc_mem, where the ranks of this host may share it.
#pragma once

#include <mpi.h>

namespace sluice_mpi {

/// With MPI's arguments; returns as it does. Memory of sluice::allocate unless SLUICE_HOST_LEVEL is
/// off, if calls may be taken over, else MPI's.
int allocate_memory(MPI_Aint bytes, MPI_Info info, void* address_of_pointer);
int free_memory(void* memory);

}  // namespace sluice_mpi
