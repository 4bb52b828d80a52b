// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <math.h>

int near(double actual, double expected) { return fabs(actual - expected) < 1e-6; }

void* first_bytes(const void* from, size_t size) {
  void* copy = malloc(size);
  CHECK(copy != NULL);
  memcpy(copy, from, size);
  memcpy(copy, &size, sizeof size);
  return copy;
}

void* with_new_field(const void* from, size_t size, int64_t new_field) {
  const size_t newer = size + sizeof new_field;
  char* copy = malloc(newer);
  CHECK(copy != NULL);
  memcpy(copy, from, size);
  memcpy(copy + size, &new_field, sizeof new_field);
  memcpy(copy, &newer, sizeof newer);
  return copy;
}

int run_tests(const named_test* tests, size_t count, int argc, char** argv) {
  int ran = 0;
  for (size_t index = 0; index < count; ++index) {
    if (argc > 1 && strcmp(argv[1], tests[index].name) != 0) continue;
    tests[index].run();
    ++ran;
  }
  printf("%d passed\n", ran);
  return ran > 0 ? 0 : 2; /* 2: no test has that name */
}
