// SPDX-License-Identifier: Apache-2.0
//
// The functions of cuBLASLt that the runtime calls, found when the first model is loaded on a
// device. So a program that was built with CUDA starts, and runs on the CPU, where the library of
// half a gigabyte is missing.
#ifndef LEAPQUANT_RUNTIME_CUDA_CUBLASLT_H_
#define LEAPQUANT_RUNTIME_CUDA_CUBLASLT_H_

#include <cublasLt.h>

#include <string_view>

namespace leapquant::runtime::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) description_create;
  decltype(&cublasLtMatmulDescDestroy) description_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) description_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

// Throws Error that names the library when it cannot be found.
const CublasLt& cublaslt();

// Throws Error "cuBLASLt could not <what> (status n)."
void check(cublasStatus_t status, std::string_view what);

}  // namespace leapquant::runtime::cuda

#endif  // LEAPQUANT_RUNTIME_CUDA_CUBLASLT_H_
