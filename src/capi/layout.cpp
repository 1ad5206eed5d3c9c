// SPDX-License-Identifier: Apache-2.0
//
// C API, section "Layout": creation, sizes, boundaries, workspace.
#include <climits>
#include <new>

#include "backend/registry.h"
#include "capi/blob.h"
#include "capi/layout_handle.h"
#include "capi/structs.h"
#include "capi/workspace.h"
#include "core/position.h"

using leapquant::capi::fail;
using leapquant::capi::last_error;

namespace {

constexpr int32_t kMaxFormats = 8;

leapquant_status take_formats(const leapquant_format* formats, int32_t num_formats,
                              leapquant_format (&taken)[kMaxFormats]) {
  if (formats == nullptr) return fail(LEAPQUANT_NULL_POINTER, "formats is null");
  if (num_formats < 1 || num_formats > kMaxFormats) {
    return fail(LEAPQUANT_INVALID_ARGUMENT, "num_formats is %d, expected 1 to %d", num_formats,
                kMaxFormats);
  }
  for (int32_t i = 0; i < num_formats; ++i) {
    char name[24];
    std::snprintf(name, sizeof(name), "formats[%d]", i);
    if (leapquant_status s = leapquant::capi::take_struct(&formats[i], name, &taken[i])) return s;
    if (leapquant_status s =
            leapquant::capi::check_reserved(taken[i].reserved, name, LEAPQUANT_INVALID_FORMAT)) {
      return s;
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace

extern "C" {

leapquant_status leapquant_layout_create(const leapquant_shape* shape,
                                         const leapquant_format* formats, int32_t num_formats,
                                         const uint8_t* head_format, leapquant_device device,
                                         leapquant_layout** layout) {
  if (layout == nullptr) return fail(LEAPQUANT_NULL_POINTER, "layout is null");
  leapquant_shape taken_shape;
  if (leapquant_status s = leapquant::capi::take_struct(shape, "shape", &taken_shape)) return s;
  if (leapquant_status s =
          leapquant::capi::check_reserved(taken_shape.reserved, "shape", LEAPQUANT_INVALID_SHAPE)) {
    return s;
  }
  leapquant_format taken[kMaxFormats];
  if (leapquant_status s = take_formats(formats, num_formats, taken)) return s;
  if (device != LEAPQUANT_CPU && device != LEAPQUANT_CUDA) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "device is %d, expected LEAPQUANT_CPU (0) or LEAPQUANT_CUDA (1)",
                static_cast<int>(device));
  }
  leapquant_layout* created = new (std::nothrow) leapquant_layout;
  if (created == nullptr) {
    return fail(LEAPQUANT_OUT_OF_MEMORY, "the host refused %zu bytes for a layout",
                sizeof(leapquant_layout));
  }
  leapquant_status s = leapquant::make_layout(taken_shape, taken, num_formats, head_format,
                                              &created->layout, last_error());
  if (s == LEAPQUANT_OK) {
    s = leapquant::choose_backend(created->layout, device, &created->backend, last_error());
  }
  if (s != LEAPQUANT_OK) {
    delete created;
    return s;
  }
  std::snprintf(created->name, sizeof(created->name), "%s/%s", created->backend->name,
                created->backend->target());
  *layout = created;
  return LEAPQUANT_OK;
}

void leapquant_layout_destroy(leapquant_layout* layout) { delete layout; }

const char* leapquant_layout_backend(const leapquant_layout* layout) {
  return layout == nullptr ? "" : layout->name;
}

leapquant_status leapquant_bytes_per_slot(const leapquant_layout* layout, leapquant_sizes* sizes) {
  if (layout == nullptr) return fail(LEAPQUANT_NULL_POINTER, "layout is null");
  if (leapquant_status s = leapquant::capi::check_struct_size(sizes, "sizes")) return s;
  const leapquant::Layout& l = layout->layout;
  leapquant_sizes answer = LEAPQUANT_INIT(leapquant_sizes);
  answer.state_bytes = l.state_bytes;
  answer.window_bytes = l.window.bytes;
  answer.metadata_bytes = static_cast<int64_t>(l.shape.num_v_heads) *
                          static_cast<int64_t>(sizeof(int32_t) + sizeof(leapquant_health));
  answer.saved_bytes = leapquant::capi::largest_blob_bytes(l);
  answer.ring_tokens = l.window.ring_tokens;
  answer.num_classes = static_cast<int32_t>(l.classes.size());
  leapquant::capi::give_struct(answer, sizes);
  return LEAPQUANT_OK;
}

int64_t leapquant_boundary_bytes(const leapquant_layout* layout, int32_t v_head) {
  if (layout == nullptr || v_head < 0 || v_head >= layout->layout.shape.num_v_heads) return 0;
  return layout->layout.head(v_head).bytes;
}

int32_t leapquant_last_boundary(const leapquant_layout* layout, int32_t v_head, int32_t position) {
  if (layout == nullptr || v_head < 0 || v_head >= layout->layout.shape.num_v_heads) {
    return INT32_MIN;
  }
  const leapquant::Layout& l = layout->layout;
  return leapquant::last_boundary(position, l.head_boundary[static_cast<size_t>(v_head)],
                                  l.window_tokens);
}

size_t leapquant_workspace_bytes(const leapquant_layout* layout, int32_t num_workers,
                                 int32_t max_batch) {
  if (layout == nullptr || num_workers < 1 || max_batch < 0) return 0;
  return leapquant::capi::workspace_bytes(*layout, num_workers, max_batch);
}

}  // extern "C"
