// SPDX-License-Identifier: Apache-2.0
//
// See device_arguments.h.
#include "tool/device_arguments.h"

#include "tool/option_checks.h"
#include "tool/verb.h"

namespace leapquant::tool {

void DeviceArguments::add_to(CLI::App& app) {
  app.add_option("--device", device_, "where the model runs: cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  activations_option_ =
      app.add_option("--activations", activations_,
                     "type of weights and activations on cuda; the CPU computes in fp32")
          ->check(one_of({"bf16", "fp32"}))
          ->capture_default_str();
}

void DeviceArguments::check() const {
  if (!is_cuda() && activations_option_->count() > 0) {
    throw UsageError("--activations needs --device cuda; the CPU computes in fp32.");
  }
}

runtime::Activations DeviceArguments::activations() const {
  return activations_ == "fp32" ? runtime::Activations::kFp32 : runtime::Activations::kBf16;
}

std::string DeviceArguments::text() const {
  return is_cuda() ? "cuda/" + activations_ : std::string("cpu");
}

std::shared_ptr<const runtime::DeviceModel> DeviceArguments::load(
    const runtime::Model& model) const {
  check();
  return is_cuda() ? runtime::load_on_cuda(model, activations()) : nullptr;
}

void DeviceArguments::apply(const std::shared_ptr<const runtime::DeviceModel>& model,
                            runtime::BatchOptions& options) const {
  options.device_model = model;
  // A device needs more rows than a CPU before its products pay for the weights they read.
  constexpr std::int32_t kDevicePrefillChunk = 2048;
  if (is_cuda()) options.prefill_chunk = kDevicePrefillChunk;
}

}  // namespace leapquant::tool
