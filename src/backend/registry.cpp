// SPDX-License-Identifier: Apache-2.0
//
// The ordered list of backends and the rule of choice. The reference is not in the list: it is the
// oracle of the tests and never serves a caller.
#include "backend/registry.h"

#include <cstring>

#include "cpu/backend.h"
#ifdef LEAPQUANT_WITH_CUDA
#include "cuda/backend.h"
#endif

namespace leapquant {
namespace {

const char* device_name(leapquant_device device) {
  return device == LEAPQUANT_CUDA ? "CUDA" : "CPU";
}

// Appends a backend's reason, which begins with its name. A full buffer cuts the list short.
void append_reason(Sentence* sentence, const Sentence& reason) {
  const size_t used = std::strlen(sentence->text);
  const size_t room = sizeof(sentence->text) - used;
  const int cut = room > 3 ? static_cast<int>(room - 3) : 0;
  std::snprintf(sentence->text + used, room, "; %.*s", cut, reason.text);
}

}  // namespace

Status choose_backend_from(const Backend* const* backends, size_t count, const Layout& layout,
                           leapquant_device device, const Backend** chosen, Sentence* sentence) {
  Sentence reasons;
  reasons.say(LEAPQUANT_UNSUPPORTED, "no backend accepts this layout");
  bool asked = false;
  for (size_t i = 0; i < count; ++i) {
    if (backends[i]->device != device) continue;
    asked = true;
    Sentence why_not;
    const Status status = backends[i]->accepts(layout, &why_not);
    if (status == LEAPQUANT_OK) {
      *chosen = backends[i];
      return LEAPQUANT_OK;
    }
    if (status == LEAPQUANT_DEVICE_UNAVAILABLE) {  // no other backend can mend that
      *sentence = why_not;
      return status;
    }
    append_reason(&reasons, why_not);
  }
  if (!asked) {
    return sentence->say(LEAPQUANT_DEVICE_UNAVAILABLE,
                         "device is %s, but no backend for it is built into this library; expected "
                         "LEAPQUANT_CPU",
                         device_name(device));
  }
  *sentence = reasons;
  return LEAPQUANT_UNSUPPORTED;
}

const Backend* const* built_in_backends(size_t* count) {
#ifdef LEAPQUANT_WITH_CUDA
  static const Backend* const backends[] = {&cpu::cpu_backend(), &cuda::backend_128(),
                                            &cuda::backend_plain_128(), &cuda::general_backend()};
#else
  static const Backend* const backends[] = {&cpu::cpu_backend()};
#endif
  *count = sizeof(backends) / sizeof(backends[0]);
  return backends;
}

Status choose_backend(const Layout& layout, leapquant_device device, const Backend** chosen,
                      Sentence* sentence) {
  size_t count = 0;
  const Backend* const* backends = built_in_backends(&count);
  return choose_backend_from(backends, count, layout, device, chosen, sentence);
}

}  // namespace leapquant
