#include "core/launch/cluster/authentication.hpp"

#include <gtest/gtest.h>

namespace accel::launch {
namespace {

const Handshake kHandshake = {std::string(64, '1'), std::string(64, '2'), "0.1.0", "job-17"};

TEST(AuthenticationTest, AProofIsTheHmacOfRoleNoncesVersionAndRun) {
  // printf 'accel rendezvous server\n1...\n2...\n0.1.0\njob-17' | openssl dgst -sha256 -hmac 'a secret'
  EXPECT_EQ(proof_of("a secret", Role::kServer, kHandshake),
            "932af1b3d61cfb567945f0ac4480d4d62f9fd2330374a10aa46b0d1673e8a766");
}

TEST(AuthenticationTest, AProofIsOfOneSecretRoleAndHandshake) {
  const std::string proof = proof_of("a secret", Role::kMember, kHandshake);
  EXPECT_TRUE(is_proof(proof, "a secret", Role::kMember, kHandshake));
  EXPECT_FALSE(is_proof(proof, "another", Role::kMember, kHandshake));
  EXPECT_FALSE(is_proof(proof, "a secret", Role::kServer, kHandshake));
  EXPECT_FALSE(is_proof("", "a secret", Role::kMember, kHandshake));
  Handshake swapped = kHandshake;
  std::swap(swapped.challenge, swapped.nonce);
  EXPECT_FALSE(is_proof(proof, "a secret", Role::kMember, swapped));
  Handshake other = kHandshake;
  other.run_id = "job-18";
  EXPECT_FALSE(is_proof(proof, "a secret", Role::kMember, other));
}

TEST(AuthenticationTest, WithoutASecretThereIsNoProof) {
  EXPECT_EQ(proof_of("", Role::kServer, kHandshake), "");
  EXPECT_TRUE(is_proof("", "", Role::kServer, kHandshake));
  EXPECT_FALSE(is_proof("1", "", Role::kServer, kHandshake));
}

TEST(AuthenticationTest, NoncesDiffer) {
  const std::string nonce = new_nonce();
  EXPECT_TRUE(is_nonce(nonce));
  EXPECT_NE(nonce, new_nonce());
  EXPECT_FALSE(is_nonce(nonce + "0"));
  std::string with_newline(64, '0');
  with_newline.back() = '\n';
  EXPECT_FALSE(is_nonce(with_newline));
}

}  // namespace
}  // namespace accel::launch
