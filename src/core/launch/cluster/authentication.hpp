#pragma once

#include <string>
#include <string_view>

namespace accel::launch {

/// How two launchers prove to each other that they know the secret of a run without sending it: each sends a
/// nonce, and answers with HMAC-SHA256, keyed with the secret, of its own role, both nonces, the version of
/// accel and the run's id. The nonces keep an old proof from being used again, and the roles keep one side's
/// proof from being sent back to it.
enum class Role { kServer, kMember };

/// What both sides know after the hello.
struct Handshake {
  std::string challenge;  ///< The nonce of the server.
  std::string nonce;      ///< The nonce of the member.
  std::string version;
  std::string run_id;
};

/// 32 random bytes as hexadecimal digits.
[[nodiscard]] std::string new_nonce();
/// Whether a text has the form of a nonce.
[[nodiscard]] bool is_nonce(std::string_view text);

/// The proof that `role` knows the secret, as hexadecimal digits; empty if there is no secret. Both nonces
/// must have their form.
[[nodiscard]] std::string proof_of(std::string_view secret, Role role, const Handshake& handshake);

/// Whether `proof` is that of `role`. The comparison takes the same time wherever they differ.
[[nodiscard]] bool is_proof(std::string_view proof, std::string_view secret, Role role,
                            const Handshake& handshake);

}  // namespace accel::launch
