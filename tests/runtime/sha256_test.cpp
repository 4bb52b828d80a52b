// SPDX-License-Identifier: Apache-2.0
#include "runtime/sha256.h"

#include <gtest/gtest.h>

namespace strobe::runtime {
namespace {

// The examples of FIPS 180-4's companion, "SHA-256" (NIST, Cryptographic Standards and Guidelines): names of kernels
// in disk caches that exist already depend on them.
TEST(Sha256, MatchesThePublishedExamples) {
  const auto hash = [](std::string_view message) { return to_hex(Sha256().update(message).finish()); };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, TakesAMessageInParts) {
  EXPECT_EQ(Sha256().update("ab").update("").update("c").finish(), Sha256().update("abc").finish());
}

TEST(Sha256, TellsFieldsApart) {
  EXPECT_NE(Sha256().update_field("ab").update_field("c").finish(),
            Sha256().update_field("a").update_field("bc").finish());
}

}  // namespace
}  // namespace strobe::runtime
