// SPDX-License-Identifier: Apache-2.0
//
// A call captured in a CUDA graph the first time it is run, and replayed from then on.
#pragma once

#include "cuda/device_layer.h"

namespace leapquant::cuda_test {

class CapturedCall {
 public:
  CapturedCall() = default;
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;
  ~CapturedCall() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // call(stream) makes the call and returns its status. Waits for what was put before, and for the
  // replay.
  template <typename Call>
  void run(const Call& call) {
    require(cudaDeviceSynchronize());
    if (executable_ == nullptr) {
      require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      require(call(stream_));
      require(cudaStreamEndCapture(stream_, &graph_));
      require(cudaGraphInstantiate(&executable_, graph_, 0));
    }
    require(cudaGraphLaunch(executable_, stream_));
    require(cudaStreamSynchronize(stream_));
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace leapquant::cuda_test
