// SPDX-License-Identifier: Apache-2.0
// Says what an older C++ lacks, before errors from inside the headers do.
#pragma once

#if __cplusplus < 202002L
#error "Strobe's C++ headers need C++20: compile with -std=c++20, or include strobe/strobe.h, which is C99"
#endif
