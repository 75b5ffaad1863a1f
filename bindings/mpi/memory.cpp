#include "bindings/mpi/memory.hpp"

#include <cstddef>
#include <cstring>

#include <sluice/error.hpp>
#include <sluice/memory.hpp>

#include "bindings/mpi/interposer.hpp"

namespace sluice_mpi {

int allocate_memory(MPI_Aint bytes, MPI_Info info, void* address_of_pointer) {
  const Interposer* const interposer = Interposer::active();
  if (interposer == nullptr || !interposer->shares_memory || bytes < 0 ||
      address_of_pointer == nullptr)
    return PMPI_Alloc_mem(bytes, info, address_of_pointer);
  try {
    void* const memory = sluice::allocate(static_cast<std::size_t>(bytes));
    std::memcpy(address_of_pointer, &memory, sizeof memory);
    return MPI_SUCCESS;
  } catch (const sluice::Error&) {  // which MPI tells its own way
    return PMPI_Alloc_mem(bytes, info, address_of_pointer);
  }
}

int free_memory(void* memory) {
  if (!sluice::is_allocated(memory)) return PMPI_Free_mem(memory);
  sluice::deallocate(memory);
  return MPI_SUCCESS;
}

}  // namespace sluice_mpi
