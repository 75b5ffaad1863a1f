// MPI's predefined datatypes and operations as Sluice's.
#pragma once

#include <optional>
#include <string>

#include <mpi.h>

#include <sluice/types.hpp>

namespace sluice_mpi {

struct Elements {
  sluice::ElementType type = sluice::ElementType::kFloat32;
  sluice::Reduction reduction = sluice::Reduction::kSum;
};

/// How Sluice reduces elements of this type with the result that MPI promises; none for derived
/// types, operations that are logical, of pairs or the program's own, and types of other sizes.
/// Unsigned elements are reduced as signed ones of their size where that gives the same bits.
std::optional<Elements> elements_of(MPI_Datatype type, MPI_Op operation);

/// "MPI_LAND of MPI_INT", "user-defined operation of derived datatype".
std::string name_of(MPI_Datatype type, MPI_Op operation);

bool is_predefined(MPI_Datatype type);

}  // namespace sluice_mpi
