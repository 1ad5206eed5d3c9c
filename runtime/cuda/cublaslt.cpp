// SPDX-License-Identifier: Apache-2.0
//
// See cublaslt.h. The library is never unloaded.
#include "runtime/cuda/cublaslt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "runtime/error.h"

namespace leapquant::runtime::cuda {
namespace {

// The build knows where the toolkit lies; elsewhere the system's search path decides.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library =
        dlopen((std::string(LEAPQUANT_CUDA_LIBRARIES "/") + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(fmt::format(
        "{} is not found; install cuBLAS of CUDA {} or name its folder in LD_LIBRARY_PATH, or use "
        "the CPU.",
        name, CUBLAS_VER_MAJOR));
  }
  return library;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Error(fmt::format("cuBLASLt has no function {}.", name));
}

CublasLt load() {
  void* library = open_library();
  CublasLt table{};
  find(library, "cublasLtCreate", table.create);
  find(library, "cublasLtDestroy", table.destroy);
  find(library, "cublasLtMatmul", table.matmul);
  find(library, "cublasLtMatmulDescCreate", table.description_create);
  find(library, "cublasLtMatmulDescDestroy", table.description_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", table.description_set);
  find(library, "cublasLtMatrixLayoutCreate", table.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", table.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", table.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", table.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", table.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", table.heuristic);
  return table;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt table = load();
  return table;
}

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("cuBLASLt could not {} (status {}).", what, static_cast<int>(status)));
}

}  // namespace leapquant::runtime::cuda
