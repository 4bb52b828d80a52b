# SPDX-License-Identifier: Apache-2.0
# Warnings for our own targets only; never exported to users.
add_library(strobe_warnings INTERFACE)
# Designated initialisers that leave fields at their defaults are how options are given here.
target_compile_options(strobe_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers)
