// SPDX-License-Identifier: Apache-2.0
/* The version of these headers, for C and C++ and for conditional compilation. strobe_version() is the library's. */
#pragma once

/* @stable */
#define STROBE_VERSION_MAJOR 0
#define STROBE_VERSION_MINOR 2
#define STROBE_VERSION_PATCH 0

/* One number to compare: 0.2.3 is 203, 1.2.3 is 10203. @stable */
#define STROBE_VERSION (10000 * STROBE_VERSION_MAJOR + 100 * STROBE_VERSION_MINOR + STROBE_VERSION_PATCH)
