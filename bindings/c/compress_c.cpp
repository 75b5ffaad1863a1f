// The compressors of sluice.h by means of compress.hpp.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sluice/compress.hpp>
#include <sluice/sluice.h>

#include "bindings/c/guarded.hpp"

struct sluice_elements {
  sluice::SparseElements elements;
};

struct sluice_element_top_k {
  sluice::ElementTopK top_k;
};

namespace {

using sluice::c::check_size;
using sluice::c::elements_of;
using sluice::c::given;
using sluice::c::guarded;
using sluice::c::residual_of;

sluice::BlockCompression from_c(const sluice_block_compression* pointer, const char* call) {
  const sluice_block_compression& blocks = given(pointer, call, "blocks");
  check_size(blocks.size, sizeof blocks, call, "blocks");
  return {
      .gradients = elements_of(blocks.gradients, blocks.count, call, "gradients"),
      .residual = residual_of(blocks.residual, blocks.count),
      .out = elements_of(blocks.out, blocks.count, call, "out"),
      .sent_blocks = elements_of(blocks.sent_blocks, blocks.sent_words, call, "sent_blocks"),
      .block_elements = blocks.block_elements,
      .divisor = blocks.divisor,
  };
}

/// Runs it on the blocks and tells what it returns.
template <class Compress>
sluice_status compressed(const char* call, const sluice_block_compression* blocks,
                         std::uint64_t* sent, sluice_error* error, Compress&& compress) {
  return guarded(error, [&] {
    const std::uint64_t count = compress(from_c(blocks, call));
    if (sent != nullptr) *sent = count;
  });
}

}  // namespace

// --------------------------------------------------------------------------------------- blocks
sluice_status sluice_compress_threshold(const sluice_block_compression* blocks, double norm,
                                        uint64_t* sent, sluice_error* error) {
  return compressed("sluice_compress_threshold", blocks, sent, error,
                    [&](const sluice::BlockCompression& given_blocks) {
                      return sluice::compress_threshold(given_blocks, norm);
                    });
}

sluice_status sluice_compress_top_k(const sluice_block_compression* blocks, uint64_t k,
                                    uint64_t* sent, sluice_error* error) {
  return compressed("sluice_compress_top_k", blocks, sent, error,
                    [&](const sluice::BlockCompression& given_blocks) {
                      return sluice::compress_top_k(given_blocks, k);
                    });
}

sluice_status sluice_compress_top_k_ratio(const sluice_block_compression* blocks,
                                          const float* parameters, uint64_t k, uint64_t* sent,
                                          sluice_error* error) {
  constexpr const char* kCall = "sluice_compress_top_k_ratio";
  return compressed(kCall, blocks, sent, error, [&](const sluice::BlockCompression& given_blocks) {
    return sluice::compress_top_k_ratio(
        given_blocks, elements_of(parameters, given_blocks.gradients.size(), kCall, "parameters"),
        k);
  });
}

sluice_status sluice_compress_random_k(const sluice_block_compression* blocks, uint64_t k,
                                       uint64_t seed, uint64_t step, uint64_t* sent,
                                       sluice_error* error) {
  return compressed("sluice_compress_random_k", blocks, sent, error,
                    [&](const sluice::BlockCompression& given_blocks) {
                      return sluice::compress_random_k(given_blocks, k, seed, step);
                    });
}

// ------------------------------------------------------------------------------------- elements
sluice_elements* sluice_elements_create(void) {
  return new (std::nothrow) sluice_elements;
}

size_t sluice_elements_get(const sluice_elements* elements, const uint32_t** keys,
                           const float** values) {
  if (elements == nullptr) return 0;
  if (keys != nullptr) *keys = elements->elements.keys.data();
  if (values != nullptr) *values = elements->elements.values.data();
  return elements->elements.keys.size();
}

void sluice_elements_destroy(sluice_elements* elements) {
  delete elements;
}

sluice_status sluice_compress_elements(const float* gradients, float* residual, uint64_t count,
                                       float magnitude, sluice_elements* out, sluice_error* error) {
  constexpr const char* kCall = "sluice_compress_elements";
  return guarded(error, [&] {
    auto& elements = given(out, kCall, "out").elements;
    sluice::compress_elements(elements_of(gradients, count, kCall, "gradients"),
                              residual_of(residual, count), magnitude, elements);
  });
}

sluice_status sluice_element_top_k_create(uint64_t k, uint64_t bucket_elements,
                                          uint32_t exact_every, sluice_element_top_k** top_k,
                                          sluice_error* error) {
  return guarded(error, [&] {
    auto& out = given(top_k, "sluice_element_top_k_create", "top_k");
    out = std::make_unique<sluice_element_top_k>(
              sluice_element_top_k{sluice::ElementTopK({k, bucket_elements, exact_every})})
              .release();
  });
}

sluice_status sluice_element_top_k_set_k(sluice_element_top_k* top_k, uint64_t k,
                                         sluice_error* error) {
  return guarded(error,
                 [&] { given(top_k, "sluice_element_top_k_set_k", "top_k").top_k.set_k(k); });
}

sluice_status sluice_element_top_k_compress(sluice_element_top_k* top_k, const float* gradients,
                                            float* residual, uint64_t count, sluice_elements* out,
                                            sluice_error* error) {
  constexpr const char* kCall = "sluice_element_top_k_compress";
  return guarded(error, [&] {
    auto& elements = given(out, kCall, "out").elements;
    given(top_k, kCall, "top_k")
        .top_k.compress(elements_of(gradients, count, kCall, "gradients"),
                        residual_of(residual, count), elements);
  });
}

void sluice_element_top_k_destroy(sluice_element_top_k* top_k) {
  delete top_k;
}

// ------------------------------------------------------------------------------------ the union
sluice_status sluice_k_for_union(uint32_t ranks, uint64_t units, uint64_t unit_bytes,
                                 uint64_t bytes, uint64_t own, uint64_t in_union, uint64_t* k,
                                 sluice_error* error) {
  return guarded(error, [&] {
    auto& out = given(k, "sluice_k_for_union", "k");
    sluice::UnionTarget target({ranks, units, unit_bytes, bytes});
    target.measured(own, in_union);
    out = target.k();
  });
}
