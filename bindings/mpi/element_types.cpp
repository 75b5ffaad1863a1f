#include "bindings/mpi/element_types.hpp"

#include <unordered_map>

namespace sluice_mpi {
namespace {

using sluice::ElementType;
using sluice::Reduction;

enum class Kind { kFloating, kSigned, kUnsigned, kBits };

std::optional<Kind> kind_of(MPI_Datatype type) {
  static const std::unordered_map<MPI_Datatype, Kind> kinds{
      {MPI_FLOAT, Kind::kFloating},
      {MPI_DOUBLE, Kind::kFloating},
      {MPI_REAL, Kind::kFloating},
      {MPI_DOUBLE_PRECISION, Kind::kFloating},
      {MPI_REAL4, Kind::kFloating},
      {MPI_REAL8, Kind::kFloating},
      {MPI_SIGNED_CHAR, Kind::kSigned},
      {MPI_SHORT, Kind::kSigned},
      {MPI_INT, Kind::kSigned},
      {MPI_LONG, Kind::kSigned},
      {MPI_LONG_LONG, Kind::kSigned},
      {MPI_INT8_T, Kind::kSigned},
      {MPI_INT16_T, Kind::kSigned},
      {MPI_INT32_T, Kind::kSigned},
      {MPI_INT64_T, Kind::kSigned},
      {MPI_INTEGER, Kind::kSigned},
      {MPI_INTEGER1, Kind::kSigned},
      {MPI_INTEGER2, Kind::kSigned},
      {MPI_INTEGER4, Kind::kSigned},
      {MPI_INTEGER8, Kind::kSigned},
      {MPI_AINT, Kind::kSigned},
      {MPI_OFFSET, Kind::kSigned},
      {MPI_COUNT, Kind::kSigned},
      {MPI_UNSIGNED_CHAR, Kind::kUnsigned},
      {MPI_UNSIGNED_SHORT, Kind::kUnsigned},
      {MPI_UNSIGNED, Kind::kUnsigned},
      {MPI_UNSIGNED_LONG, Kind::kUnsigned},
      {MPI_UNSIGNED_LONG_LONG, Kind::kUnsigned},
      {MPI_UINT8_T, Kind::kUnsigned},
      {MPI_UINT16_T, Kind::kUnsigned},
      {MPI_UINT32_T, Kind::kUnsigned},
      {MPI_UINT64_T, Kind::kUnsigned},
      {MPI_BYTE, Kind::kBits},
  };
  const auto found = kinds.find(type);
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

struct Operation {
  const char* name = "user-defined operation";
  std::optional<Reduction> reduction{};  ///< none: Sluice has not this one
};

Operation operation_of(MPI_Op operation) {
  static const std::unordered_map<MPI_Op, Operation> operations{
      {MPI_SUM, {"MPI_SUM", Reduction::kSum}},
      {MPI_PROD, {"MPI_PROD", Reduction::kProduct}},
      {MPI_MIN, {"MPI_MIN", Reduction::kMin}},
      {MPI_MAX, {"MPI_MAX", Reduction::kMax}},
      {MPI_BAND, {"MPI_BAND", Reduction::kBitAnd}},
      {MPI_BOR, {"MPI_BOR", Reduction::kBitOr}},
      {MPI_BXOR, {"MPI_BXOR", Reduction::kBitXor}},
      {MPI_LAND, {"MPI_LAND"}},
      {MPI_LOR, {"MPI_LOR"}},
      {MPI_LXOR, {"MPI_LXOR"}},
      {MPI_MINLOC, {"MPI_MINLOC"}},
      {MPI_MAXLOC, {"MPI_MAXLOC"}},
      {MPI_REPLACE, {"MPI_REPLACE"}},
      {MPI_NO_OP, {"MPI_NO_OP"}},
  };
  const auto found = operations.find(operation);
  return found == operations.end() ? Operation() : found->second;
}

/// Derived types are one, whatever a program calls them: it may make names without end.
std::string name_of(MPI_Datatype type) {
  if (!is_predefined(type)) return "derived datatype";
  char name[MPI_MAX_OBJECT_NAME] = {};
  int length = 0;
  PMPI_Type_get_name(type, name, &length);
  return name;
}

bool is_bitwise(Reduction reduction) {
  return reduction == Reduction::kBitAnd || reduction == Reduction::kBitOr ||
         reduction == Reduction::kBitXor;
}

bool depends_on_sign(Reduction reduction) {
  return reduction == Reduction::kMin || reduction == Reduction::kMax;
}

std::optional<ElementType> floating(int bytes) {
  if (bytes == 4) return ElementType::kFloat32;
  if (bytes == 8) return ElementType::kFloat64;
  return std::nullopt;
}

std::optional<ElementType> signed_integer(int bytes) {
  if (bytes == 1) return ElementType::kInt8;
  if (bytes == 2) return ElementType::kInt16;
  if (bytes == 4) return ElementType::kInt32;
  if (bytes == 8) return ElementType::kInt64;
  return std::nullopt;
}

std::optional<ElementType> element_type(Kind kind, int bytes, Reduction reduction) {
  switch (kind) {
    case Kind::kFloating:
      return is_bitwise(reduction) ? std::nullopt : floating(bytes);
    case Kind::kSigned:
      return signed_integer(bytes);
    case Kind::kUnsigned:
      if (bytes == 1) return ElementType::kUInt8;
      return depends_on_sign(reduction) ? std::nullopt : signed_integer(bytes);
    case Kind::kBits:
      return is_bitwise(reduction) ? std::optional(ElementType::kUInt8) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Elements> elements_of(MPI_Datatype type, MPI_Op operation) {
  const auto kind = kind_of(type);
  const auto reduction = operation_of(operation).reduction;
  if (!kind || !reduction) return std::nullopt;
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  const auto element = element_type(*kind, bytes, *reduction);
  return element ? std::optional(Elements{*element, *reduction}) : std::nullopt;
}

std::string name_of(MPI_Datatype type, MPI_Op operation) {
  return operation_of(operation).name + (" of " + name_of(type));
}

bool is_predefined(MPI_Datatype type) {
  int integers = 0;
  int addresses = 0;
  int datatypes = 0;
  int combiner = 0;
  PMPI_Type_get_envelope(type, &integers, &addresses, &datatypes, &combiner);
  return combiner == MPI_COMBINER_NAMED;
}

}  // namespace sluice_mpi
