/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the header with abi_pinned.inc: a changed struct or enumerator fails here before it
 * breaks a program that was built against an older header.
 */
#include <stddef.h>
#include <stdio.h>

#include "leapquant/leapquant.h"

static int failures = 0;

static void expect(const char* name, size_t is, size_t was) {
  if (is == was) return;
  ++failures;
  fprintf(stderr, "%s is %zu, but was released as %zu\n", name, is, was);
}

#define STRUCT(type, bytes) expect("sizeof " #type, sizeof(type), bytes);
#define FIELD(type, field, offset) \
  expect("offset of " #type "." #field, offsetof(type, field), offset);
#define VALUE(name, value) expect(#name, (size_t)(name), value);

int main(void) {
  expect("size of a pointer", sizeof(void*), 8);
  expect("size of an enum", sizeof(leapquant_status), 4);
#include "abi_pinned.inc"
  return failures == 0 ? 0 : 1;
}
