#include "bindings/mpi/packed_elements.hpp"

#include "bindings/mpi/element_types.hpp"

namespace sluice_mpi {
namespace {

/// Derived types without gaps may still list their elements in another order than memory has them.
bool lies_in_order(MPI_Datatype type) {
  if (!is_predefined(type)) return false;
  MPI_Aint lower_bound = 0;
  MPI_Aint extent = 0;
  PMPI_Type_get_extent(type, &lower_bound, &extent);
  return static_cast<std::uint64_t>(extent) == bytes_of(1, type);
}

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiFailure{code};
}

}  // namespace

std::uint64_t bytes_of(std::uint64_t count, MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return 0;
  MPI_Count bytes = 0;
  PMPI_Type_size_x(type, &bytes);
  return count * static_cast<std::uint64_t>(bytes);
}

PackedElements::PackedElements(void* elements, int count, MPI_Datatype type, MPI_Comm comm)
    : elements_(elements),
      count_(count),
      type_(type),
      comm_(comm),
      bytes_(static_cast<int>(bytes_of(static_cast<std::uint64_t>(count), type))),
      copy_(lies_in_order(type)
                ? nullptr
                : std::make_unique_for_overwrite<std::byte[]>(std::size_t(bytes_))) {
  int position = 0;
  if (copy_) check(PMPI_Pack(elements_, 0, type_, copy_.get(), bytes_, &position, comm_));
}

void PackedElements::pack() {
  if (!copy_) return;
  int position = 0;
  check(PMPI_Pack(elements_, count_, type_, copy_.get(), bytes_, &position, comm_));
}

void PackedElements::unpack() {
  if (!copy_) return;
  int position = 0;
  check(PMPI_Unpack(copy_.get(), bytes_, &position, elements_, count_, type_, comm_));
}

}  // namespace sluice_mpi
