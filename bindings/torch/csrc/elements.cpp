#include "bindings/torch/csrc/elements.hpp"

#include <optional>
#include <sstream>

#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

using Type = sluice::ElementType;
using Op = c10d::ReduceOp;

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kBool:
      return "bool";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(dtype);
  }
}

namespace {

const char* op_name(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
      return "SUM";
    case Op::AVG:
      return "AVG";
    case Op::PRODUCT:
      return "PRODUCT";
    case Op::MIN:
      return "MIN";
    case Op::MAX:
      return "MAX";
    case Op::BAND:
      return "BAND";
    case Op::BOR:
      return "BOR";
    case Op::BXOR:
      return "BXOR";
    case Op::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

std::optional<Elements> reducible(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kBool:
      return Elements{Type::kUInt8};
    case at::kChar:
      return Elements{Type::kInt8};
    case at::kShort:
      return Elements{Type::kInt16};
    case at::kInt:
      return Elements{Type::kInt32};
    case at::kLong:
      return Elements{Type::kInt64};
    case at::kHalf:
      return Elements{Type::kFloat16};
    case at::kBFloat16:
      return Elements{Type::kBFloat16};
    case at::kFloat:
      return Elements{Type::kFloat32};
    case at::kDouble:
      return Elements{Type::kFloat64};
    case at::kComplexFloat:
      return Elements{Type::kFloat32, 2};
    case at::kComplexDouble:
      return Elements{Type::kFloat64, 2};
    default:
      return std::nullopt;
  }
}

/// Any byte but 0 is true: 2 and 4 have no bit in common, but a minimum that is true.
std::optional<sluice::Reduction> reduction_of_bool(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return sluice::Reduction::kMax;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      return sluice::Reduction::kMin;
    case Op::BXOR:
      return sluice::Reduction::kBitXor;
    default:
      return std::nullopt;
  }
}

std::optional<sluice::Reduction> reduction_of_number(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::PREMUL_SUM:
      return sluice::Reduction::kSum;
    case Op::AVG:
      return sluice::Reduction::kAverage;
    case Op::PRODUCT:
      return sluice::Reduction::kProduct;
    case Op::MIN:
      return sluice::Reduction::kMin;
    case Op::MAX:
      return sluice::Reduction::kMax;
    case Op::BAND:
      return sluice::Reduction::kBitAnd;
    case Op::BOR:
      return sluice::Reduction::kBitOr;
    case Op::BXOR:
      return sluice::Reduction::kBitXor;
    default:
      return std::nullopt;
  }
}

/// Undefined: the factor is a number. PyTorch 1.13 has a list.
template <class Supplement>
at::Tensor tensor_of(const Supplement& given) {
  if constexpr (requires { given.tensor_factor; })
    return given.tensor_factor;
  else
    return given.tensor_factors.empty() ? at::Tensor{} : given.tensor_factors.front();
}

/// Of PREMUL_SUM. Without dimensions, so that it changes no dtype.
at::Tensor factor_of(const std::string& call, const c10d::ReduceOp& op) {
  const auto* const given = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (given == nullptr)
    refuse(call, "PREMUL_SUM without a factor; torch.distributed._make_nccl_premul_sum() expected");
  const at::Tensor factor = tensor_of(*given);
  if (!factor.defined()) return at::scalar_tensor(given->double_factor, at::kDouble);
  return factor.detach().reshape({});
}

}  // namespace

Elements moved(at::ScalarType dtype) {
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (bytes % 8 == 0) return {Type::kInt64, bytes / 8};
  if (bytes % 4 == 0) return {Type::kInt32, bytes / 4};
  if (bytes % 2 == 0) return {Type::kInt16, bytes / 2};
  return {Type::kUInt8, bytes};
}

Elements sent(at::ScalarType dtype) {
  return reducible(dtype).value_or(moved(dtype));
}

Reducing reduced(const std::string& call, at::ScalarType dtype, const c10d::ReduceOp& op) {
  const Op::RedOpType kind = op.op_;
  const auto elements = reducible(dtype);
  if (!elements)
    refuse(call, "dtype " + dtype_name(dtype) +
                     "; float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64,"
                     " bool, complex64 or complex128 expected");
  const auto reduction = dtype == at::kBool ? reduction_of_bool(kind) : reduction_of_number(kind);
  if (!reduction)
    refuse(
        call,
        std::string(op_name(kind)) + " of " + dtype_name(dtype) +
            "; SUM, AVG (not of bool), PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM (of floats)"
            " expected");
  if (elements->each == 2 && kind != Op::SUM && kind != Op::AVG)
    refuse(call, std::string(op_name(kind)) + " of " + dtype_name(dtype) +
                     "; SUM or AVG expected of complex numbers");
  if (!is_valid(elements->type, *reduction))
    refuse(call,
           std::string(op_name(kind)) + " of " + dtype_name(dtype) + "; integers or bool expected");
  Reducing reducing{*elements, *reduction, dtype == at::kBool && kind == Op::BXOR};
  if (kind == Op::PREMUL_SUM) {
    if (!at::isFloatingType(dtype))
      refuse(call, "PREMUL_SUM of " + dtype_name(dtype) + "; floats expected");
    reducing.factor = factor_of(call, op);
  }
  return reducing;
}

sluice::Encoding encoding_named(const std::string& call, const std::string& name) {
  using sluice::Encoding;
  if (name == "float16") return Encoding::kFloat16;
  if (name == "bfloat16") return Encoding::kBFloat16;
  if (name == "int8") return Encoding::kInt8;
  if (name == "int4") return Encoding::kInt4;
  refuse(call, "encoding " + name + "; float16, bfloat16, int8 or int4 expected");
}

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  text << dtype_name(tensor.scalar_type()) << ' ' << tensor.sizes();
  if (tensor.is_sparse())
    text << " sparse";
  else if (tensor.layout() != at::kStrided)
    text << " of layout " << tensor.layout();
  else if (!tensor.is_contiguous())
    text << " strides " << tensor.strides();
  return text.str();
}

}  // namespace sluice_torch
