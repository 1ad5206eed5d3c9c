// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt counts columns first: row-major weights [outputs, inner] are its matrix [inner, outputs]
// to be transposed, activations [rows, inner] its [inner, rows], and the result its
// [outputs, rows].
#include "runtime/cuda/products.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace leapquant::runtime::cuda {
namespace {

// What the library's documentation recommends for Hopper.
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

cudaDataType data_type(Element element) {
  return element == Element::kFp32 ? CUDA_R_32F : CUDA_R_16BF;
}

}  // namespace

struct Products::Plan {
  ~Plan() {
    const CublasLt& lt = cublaslt();
    if (description != nullptr) lt.description_destroy(description);
    for (const cublasLtMatrixLayout_t layout : {weights, x, y}) {
      if (layout != nullptr) lt.layout_destroy(layout);
    }
  }
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t weights = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Products::Products(const Stream& stream, Element element)
    : stream_(stream), element_(element), workspace_(kWorkspaceBytes) {
  check(cublaslt().create(&handle_), "start");
}

Products::~Products() {
  plans_.clear();
  cublaslt().destroy(handle_);
}

const Products::Plan& Products::plan(const Matrix& weights, std::int64_t rows, Element type) {
  std::unique_ptr<Plan>& slot = plans_[{weights.outputs, weights.inner, rows, type}];
  if (slot != nullptr) return *slot;
  const CublasLt& lt = cublaslt();
  auto made = std::make_unique<Plan>();
  check(lt.description_create(&made->description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describe a product");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check(lt.description_set(made->description, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                           sizeof(transpose)),
        "describe a product");
  const auto layout = [&](cublasLtMatrixLayout_t* to, Element element, std::int64_t height,
                          std::int64_t width) {
    check(lt.layout_create(to, data_type(element), static_cast<std::uint64_t>(height),
                           static_cast<std::uint64_t>(width), height),
          "describe a matrix");
  };
  layout(&made->weights, element_, weights.inner, weights.outputs);
  layout(&made->x, element_, weights.inner, rows);
  layout(&made->y, type, weights.outputs, rows);
  cublasLtMatmulPreference_t preference = nullptr;
  check(lt.preference_create(&preference), "describe a choice");
  const auto workspace = static_cast<std::uint64_t>(kWorkspaceBytes);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                    sizeof(workspace));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = lt.heuristic(handle_, made->description, made->weights, made->x,
                                             made->y, made->y, preference, 1, &result, &found);
  lt.preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    throw Error(
        fmt::format("cuBLASLt has no kernel for a product of {} rows with a matrix of {} x "
                    "{} (status {}).",
                    rows, weights.outputs, weights.inner, static_cast<int>(status)));
  }
  made->algorithm = result.algo;
  slot = std::move(made);
  return *slot;
}

void Products::run(const Matrix& weights, const void* x, std::int64_t rows, void* y, Element type,
                   float old_share) {
  const Plan& chosen = plan(weights, rows, type);
  const float one = 1.0f;
  check(cublaslt().matmul(handle_, chosen.description, &one, weights.data, chosen.weights, x,
                          chosen.x, &old_share, y, chosen.y, y, chosen.y, &chosen.algorithm,
                          workspace_.data(), static_cast<std::size_t>(kWorkspaceBytes),
                          stream_.get()),
        "multiply");
}

void Products::multiply(const Matrix& weights, const void* x, std::int64_t rows, void* y,
                        Element type) {
  run(weights, x, rows, y, type, 0.0f);
}

void Products::multiply_add(const Matrix& weights, const void* x, std::int64_t rows, float* y) {
  run(weights, x, rows, y, Element::kFp32, 1.0f);
}

}  // namespace leapquant::runtime::cuda
