#include "core/machine/variables.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include "base/text.hpp"

namespace accel::machine {
namespace {

/// A name that ends in "_" stands for all that begin so.
constexpr auto kRelevant = std::to_array<std::string_view>({
    "ACCEL_",
    "ACCELERATE_",
    "FSDP_",
    "PARALLELISM_CONFIG_",
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "MASTER_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_COMM_",
    "PMI_",
    "CUDA_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NO_COLOR",
    "TMPDIR",
});

constexpr auto kSecretNames =
    std::to_array<std::string_view>({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL",
                                     "JWT", "AUTH", "APIKEY", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY"});

/// How the tokens of well-known services begin.
constexpr auto kSecretBeginnings = std::to_array<std::string_view>(
    {"hf_", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "eyJ", "AKIA"});

bool is_relevant(std::string_view name) {
  return std::any_of(kRelevant.begin(), kRelevant.end(), [&](std::string_view known) {
    return known.ends_with('_') ? name.starts_with(known) : name == known;
  });
}

/// Whether `word` has 32 or more letters and digits and nothing else, as random tokens have. Identifiers of
/// GPUs have hyphens, lists have commas, and paths have slashes.
bool is_random(std::string_view word) {
  const auto is = [](int (*kind)(int)) { return [kind](unsigned char c) { return kind(c) != 0; }; };
  return word.size() >= 32 && std::all_of(word.begin(), word.end(), is(std::isalnum)) &&
         std::any_of(word.begin(), word.end(), is(std::isdigit)) &&
         std::any_of(word.begin(), word.end(), is(std::isalpha));
}

bool has_known_beginning(std::string_view word) {
  constexpr std::size_t kLeast = 16;
  return word.size() >= kLeast &&
         std::any_of(kSecretBeginnings.begin(), kSecretBeginnings.end(),
                     [&](std::string_view begin) { return word.starts_with(begin); });
}

/// Whether the word is random in the letters of base64.
bool is_base64(std::string_view word) {
  const auto any = [&](int (*kind)(int)) {
    return std::any_of(word.begin(), word.end(), [kind](unsigned char c) { return kind(c) != 0; });
  };
  return word.size() >= 32 && any(std::islower) && any(std::isupper) && any(std::isdigit) &&
         word.find_first_of("+=") != std::string_view::npos &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=' || c == '-' || c == '_';
         });
}

/// Whether `is` holds for a part of the value between any of `separators`.
template <class Predicate>
bool has_part(std::string_view value, std::string_view separators, const Predicate& is) {
  while (!value.empty()) {
    const std::size_t end = std::min(value.find_first_of(separators), value.size());
    if (is(value.substr(0, end))) return true;
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return false;
}

/// Whether a word is "https://user:word@host", "https://user@host" or "user:word@host".
bool has_password(std::string_view word) {
  const std::size_t scheme = word.find("://");
  const std::string_view place = scheme == std::string_view::npos ? word : word.substr(scheme + 3);
  const std::size_t at = place.find('@');
  if (at == std::string_view::npos) return false;
  return place.find(':') < at || (scheme != std::string_view::npos && place.find('/') > at);
}

/// Whether a part of the name between underscores says that the value is secret.
bool is_secret_part(std::string_view part) {
  constexpr auto kParts =
      std::to_array<std::string_view>({"PASS", "PWD", "PW", "KEY", "CERT", "SIG", "SIGNATURE"});
  while (!part.empty() && std::isdigit(static_cast<unsigned char>(part.back())) != 0) part.remove_suffix(1);
  return std::find(kParts.begin(), kParts.end(), part) != kParts.end();
}

}  // namespace

bool looks_secret(std::string_view name, std::string_view value) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const bool by_name = std::any_of(kSecretNames.begin(), kSecretNames.end(), [&](std::string_view part) {
    return upper.find(part) != std::string::npos;
  });
  const std::vector<std::string> parts = split(upper, '_');
  // A random part of a path is the hash of a package.
  return by_name || std::any_of(parts.begin(), parts.end(), is_secret_part) ||
         has_part(value, " \t,;:=\"'&?@()[]{}<>", is_random) ||
         has_part(value, " \t,;:=\"'&?@()[]{}<>/", has_known_beginning) ||
         has_part(value, " \t,;:\"'", is_base64) || has_part(value, " \t,;\"'", has_password);
}

std::map<std::string, std::string> relevant_variables(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> found;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    if (!is_relevant(name)) continue;
    const std::string value = entry.substr(equals + 1);
    found[name] = looks_secret(name, value) ? std::string(kMasked) : value;
  }
  return found;
}

}  // namespace accel::machine
