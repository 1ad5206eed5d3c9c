// SPDX-License-Identifier: Apache-2.0
//
// C API, sections "Version" and "Status".
#include <cstdarg>
#include <cstdio>

#include "capi/last_error.h"

namespace leapquant::capi {

Sentence* last_error() {
  static thread_local Sentence sentence;
  return &sentence;
}

Status fail(Status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error()->text, sizeof(Sentence::text), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace leapquant::capi

#define LEAPQUANT_TEXT_OF(number) #number
#define LEAPQUANT_TEXT(number) LEAPQUANT_TEXT_OF(number)

extern "C" {

uint32_t leapquant_version_number(void) { return LEAPQUANT_VERSION_NUMBER; }

const char* leapquant_version_string(void) {
  return LEAPQUANT_TEXT(LEAPQUANT_VERSION_MAJOR) "." LEAPQUANT_TEXT(
      LEAPQUANT_VERSION_MINOR) "." LEAPQUANT_TEXT(LEAPQUANT_VERSION_PATCH);
}

const char* leapquant_status_string(leapquant_status status) {
  switch (status) {
    case LEAPQUANT_OK:
      return "The call succeeded.";
    case LEAPQUANT_INVALID_ARGUMENT:
      return "An argument lies outside its documented range.";
    case LEAPQUANT_NULL_POINTER:
      return "A required pointer is null.";
    case LEAPQUANT_INVALID_SHAPE:
      return "The shape has heads, dims or sub-steps that no state can have.";
    case LEAPQUANT_INVALID_FORMAT:
      return "The format lies outside its documented ranges.";
    case LEAPQUANT_INVALID_STRIDE:
      return "A stride lets rows overlap or breaks their alignment.";
    case LEAPQUANT_BUFFER_TOO_SMALL:
      return "A buffer or workspace is smaller than its asked size.";
    case LEAPQUANT_SLOT_OUT_OF_RANGE:
      return "A slot index lies outside its pool.";
    case LEAPQUANT_SLOT_REPEATED:
      return "One slot appears twice in a call that writes it.";
    case LEAPQUANT_POSITION_BELOW_BASE:
      return "The position lies below a head's base: folded tokens cannot be taken back.";
    case LEAPQUANT_POSITION_PAST_WINDOW:
      return "The records between base and position are not in the ring.";
    case LEAPQUANT_UNSUPPORTED:
      return "The request is valid, but no backend accepts it.";
    case LEAPQUANT_NON_FINITE_INPUT:
      return "An input holds NaN or infinity.";
    case LEAPQUANT_POSITIVE_LOG_DECAY:
      return "A log decay is above zero, which would make the state grow.";
    case LEAPQUANT_TRUNCATED:
      return "The saved state ends early.";
    case LEAPQUANT_BAD_MAGIC:
      return "The bytes are not a saved state.";
    case LEAPQUANT_VERSION_MISMATCH:
      return "The state was saved in a version that this library cannot read.";
    case LEAPQUANT_CHECKSUM_MISMATCH:
      return "Bytes of the saved state have changed since it was written.";
    case LEAPQUANT_SHAPE_MISMATCH:
      return "The state was saved with another shape.";
    case LEAPQUANT_FORMAT_MISMATCH:
      return "The state was saved in another format.";
    case LEAPQUANT_FINGERPRINT_MISMATCH:
      return "The state was saved by another model.";
    case LEAPQUANT_EMPTY_ENTRY:
      return "The entry was never written: a miss, not a state.";
    case LEAPQUANT_CORRUPT:
      return "The saved state has contents that no save writes, though its checksums agree.";
    case LEAPQUANT_POOL_FULL:
      return "No slot is free within the byte budget.";
    case LEAPQUANT_OUT_OF_MEMORY:
      return "The host refused memory to a create call.";
    case LEAPQUANT_DEVICE_UNAVAILABLE:
      return "The asked device is not built in or not present.";
    case LEAPQUANT_INTERNAL:
      return "A defect of the library; please report it.";
  }
  return "This status value is unknown to this version of the library.";
}

const char* leapquant_last_error(void) { return leapquant::capi::last_error()->text; }

}  // extern "C"
