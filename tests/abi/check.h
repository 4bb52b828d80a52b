// SPDX-License-Identifier: Apache-2.0
/* Checks that print their line and end the program with 1, copies of structs as other versions have them, and a program
 * of named tests. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strobe/strobe.h"

#define CHECK(condition)                                                                                       \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      fprintf(stderr, "%s:%d: %s; last error: \"%s\"\n", __FILE__, __LINE__, #condition, strobe_last_error()); \
      exit(1);                                                                                                 \
    }                                                                                                          \
  } while (0)

#define CHECK_REJECTED(call, code, message)             \
  do {                                                  \
    CHECK((call) == (code));                            \
    CHECK(strcmp(strobe_last_error(), (message)) == 0); \
  } while (0)

/* Within 1e-6. */
int near(double actual, double expected);

/* A copy of the first `size` bytes of a struct in memory of exactly that size, so that a sanitizer sees a read beyond.
 */
void* first_bytes(const void* from, size_t size);

/* As it would be compiled against a later version: the same struct with one more field. */
void* with_new_field(const void* from, size_t size, int64_t new_field);

typedef struct named_test {
  const char* name;
  void (*run)(void);
} named_test;

#define TEST(name) {#name, test_##name}

/* Runs the test that argv[1] names, or all; what main returns. */
int run_tests(const named_test* tests, size_t count, int argc, char** argv);
