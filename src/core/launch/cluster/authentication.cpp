#include "core/launch/cluster/authentication.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.hpp"

namespace accel::launch {
namespace {

constexpr std::size_t kNonceBytes = 32;

/// Chooses libsodium's source of random numbers once.
void require_sodium() {
  static const int state = ::sodium_init();
  if (state < 0) throw Error(ErrorKind::kFailure, "libsodium cannot be initialized");
}

std::string hexadecimal(std::span<const unsigned char> bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string new_nonce() {
  require_sodium();
  std::array<unsigned char, kNonceBytes> bytes{};
  ::randombytes_buf(bytes.data(), bytes.size());
  return hexadecimal(bytes);
}

bool is_nonce(std::string_view text) {
  return text.size() == kNonceBytes * 2 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string proof_of(std::string_view secret, Role role, const Handshake& handshake) {
  if (secret.empty()) return "";
  require_sodium();
  // The nonces have one length, a version has no newline, and the id comes last, so that two handshakes never
  // have one text.
  const std::string text =
      fmt::format("accel rendezvous {}\n{}\n{}\n{}\n{}", role == Role::kServer ? "server" : "member",
                  handshake.challenge, handshake.nonce, handshake.version, handshake.run_id);
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> code{};
  ::crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  ::crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  ::crypto_auth_hmacsha256_final(&state, code.data());
  ::sodium_memzero(&state, sizeof state);
  return hexadecimal(code);
}

bool is_proof(std::string_view proof, std::string_view secret, Role role, const Handshake& handshake) {
  const std::string expected = proof_of(secret, role, handshake);
  return proof.size() == expected.size() && ::sodium_memcmp(proof.data(), expected.data(), proof.size()) == 0;
}

}  // namespace accel::launch
