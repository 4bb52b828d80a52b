// The examples of FIPS 180-4's companion, "SHA-256" (NIST, Cryptographic Standards and Guidelines).
#include "runtime/sha256.h"

#include <gtest/gtest.h>

namespace strobe::runtime {
namespace {

std::string hash(std::string_view message) { return to_hex(Sha256().update(message).finish()); }

TEST(Sha256, MatchesThePublishedExamples) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheMessageIsCut) {
  const std::string message(300, 'x');
  for (std::size_t first = 0; first <= message.size(); ++first) {
    Sha256 hash_of_parts;
    hash_of_parts.update(std::string_view(message).substr(0, first)).update(std::string_view(message).substr(first));
    EXPECT_EQ(to_hex(hash_of_parts.finish()), hash(message)) << first;
  }
}

TEST(Sha256, TellsFieldsApart) {
  EXPECT_NE(Sha256().update_field("ab").update_field("c").finish(),
            Sha256().update_field("a").update_field("bc").finish());
}

}  // namespace
}  // namespace strobe::runtime
