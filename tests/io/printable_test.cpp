// SPDX-License-Identifier: Apache-2.0
#include "io/printable.h"

#include <gtest/gtest.h>

namespace strobe::io {
namespace {

TEST(Printable, KeepsText) {
  for (const char* const text : {"", "plain 'text' \\ 100%", "Grüße, 中文, \U0001F600, e\u0301"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable_lines(text), text);
  }
}

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b[31mred\x1b]0;title\a\x7f"), "\\x1b[31mred\\x1b]0;title\\x07\\x7f");
  EXPECT_EQ(printable("a\r\n\tb"), "a\\x0d\\n\\tb");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\u009b31m\u0085"), "\\u009b31m\\u0085");
  EXPECT_EQ(printable("\u202egnp.exe\u2066\u200f\u2028"), "\\u202egnp.exe\\u2066\\u200f\\u2028");
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(printable("\xff\x80x"), "\\xff\\x80x");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe4\xb8x"), "\\xe4\\xb8x");
  EXPECT_EQ(printable("\xc1\x9b"), "\\xc1\\x9b");                    // two bytes where one does
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");           // three where two do
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond Unicode
}

TEST(Printable, KeepsLineEndsWhereThereAreLines) {
  EXPECT_EQ(printable_lines("one\ntwo\x1b\n"), "one\ntwo\\x1b\n");
  const std::string once = printable("\x1b\n\xff");
  EXPECT_EQ(printable(once), once);
}

}  // namespace
}  // namespace strobe::io
