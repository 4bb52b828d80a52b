// SPDX-License-Identifier: Apache-2.0
// Marks what libstrobe exports; everything else in the library is hidden.
#pragma once

#define STROBE_API __attribute__((visibility("default")))
