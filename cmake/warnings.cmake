# Warnings for our own targets only; never exported to users.
add_library(strobe_warnings INTERFACE)
target_compile_options(strobe_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
