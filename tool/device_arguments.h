// SPDX-License-Identifier: Apache-2.0
//
// The options of the verbs that run a model on the CPU or on a CUDA device.
#ifndef LEAPQUANT_TOOL_DEVICE_ARGUMENTS_H_
#define LEAPQUANT_TOOL_DEVICE_ARGUMENTS_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "runtime/batch.h"
#include "runtime/engine.h"

namespace leapquant::tool {

class DeviceArguments {
 public:
  // Adds --device and --activations.
  void add_to(CLI::App& app);

  // Throws UsageError for --activations on the CPU, which computes in FP32.
  void check() const;
  bool is_cuda() const { return device_ == "cuda"; }
  runtime::Activations activations() const;
  // "cpu", "cuda/bf16": for results that depend on it.
  std::string text() const;
  // The model on the device, null for the CPU. Throws runtime::Error where CUDA, a device or memory
  // is missing.
  std::shared_ptr<const runtime::DeviceModel> load(const runtime::Model& model) const;
  // Where the batch runs, and the size of its prefill passes there.
  void apply(const std::shared_ptr<const runtime::DeviceModel>& model,
             runtime::BatchOptions& options) const;

 private:
  std::string device_ = "cpu";
  std::string activations_ = "bf16";
  const CLI::Option* activations_option_ = nullptr;
};

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_DEVICE_ARGUMENTS_H_
