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

bool is_token(std::string_view word) {
  constexpr std::size_t kLeast = 16;
  return is_random(word) || (word.size() >= kLeast &&
                             std::any_of(kSecretBeginnings.begin(), kSecretBeginnings.end(),
                                         [&](std::string_view begin) { return word.starts_with(begin); }));
}

/// Whether a word of the value is a token.
bool has_token(std::string_view value) {
  constexpr std::string_view kSeparators = " \t,;:=\"'";
  while (!value.empty()) {
    const std::size_t end = std::min(value.find_first_of(kSeparators), value.size());
    if (is_token(value.substr(0, end))) return true;
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return false;
}

/// Whether the value is a URL with a password, such as "https://user:word@host".
bool has_password(std::string_view value) {
  const std::size_t begin = value.find("://");
  if (begin == std::string_view::npos) return false;
  const std::string_view host = value.substr(begin + 3, value.find('/', begin + 3) - begin - 3);
  return host.find('@') != std::string_view::npos;
}

}  // namespace

bool looks_secret(std::string_view name, std::string_view value) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const bool by_name = std::any_of(kSecretNames.begin(), kSecretNames.end(), [&](std::string_view part) {
    return upper.find(part) != std::string::npos;
  });
  return by_name || upper.ends_with("_KEY") || has_token(value) || has_password(value);
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
