// SPDX-License-Identifier: Apache-2.0
// Two files as read-only data. The build defines their paths. (An assembler copies megabytes in no time; a C++ array
// of them takes a compiler minutes.)

  .section .rodata

  .balign 16
  .globl strobe_embedded_sources
  .hidden strobe_embedded_sources
strobe_embedded_sources:
  .incbin STROBE_SOURCES_ARCHIVE
  .globl strobe_embedded_sources_end
  .hidden strobe_embedded_sources_end
strobe_embedded_sources_end:

  .balign 16
  .globl strobe_embedded_pack
  .hidden strobe_embedded_pack
strobe_embedded_pack:
  .incbin STROBE_PACK_ARCHIVE
  .globl strobe_embedded_pack_end
  .hidden strobe_embedded_pack_end
strobe_embedded_pack_end:

  // No executable stack is asked for.
  .section .note.GNU-stack, "", %progbits
