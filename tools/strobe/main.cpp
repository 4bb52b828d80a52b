// SPDX-License-Identifier: Apache-2.0
// strobe: exact attention from the command line.
#include "program.h"

int main(int argc, char** argv) { return strobe::program::run_program(argc, argv); }
