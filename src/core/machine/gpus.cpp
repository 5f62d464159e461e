#include "core/machine/gpus.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "core/launch/output/program_output.hpp"

namespace accel::machine {
namespace {

namespace fs = std::filesystem;

/// Whether `word` is a version such as "535.129.03".
bool is_version(std::string_view word) {
  return word.find('.') != std::string_view::npos &&
         word.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// The version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 ...".
std::string version_in(const std::string& line) {
  for (const std::string& word : split(line, ' ')) {
    if (is_version(word)) return word;
  }
  return "";
}

std::string first_line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

Gpus gpus_of_driver(const fs::path& root) {
  Gpus found;
  found.driver = version_in(first_line_of(root / "proc/driver/nvidia/version"));
  if (found.driver.empty()) found.driver = trim(first_line_of(root / "sys/module/nvidia/version"));
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error))
    folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) {
    Gpu gpu;
    std::ifstream in(folder / "information");
    for (std::string line; std::getline(in, line);) {
      constexpr std::string_view kKey = "Model:";
      if (line.starts_with(kKey)) gpu.name = trim(std::string_view(line).substr(kKey.size()));
    }
    found.gpus.push_back(std::move(gpu));
  }
  return found;
}

Gpus parse_nvidia_smi(std::string_view text) {
  Gpus found;
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> fields = split(line, ',');
    if (fields.size() != 3 || !is_version(trim(fields[2]))) continue;
    Gpu gpu{std::string(trim(fields[0])), std::nullopt};
    // Some GPUs share the memory of the host, and have "[N/A]".
    if (const auto mebibytes = parse_int(trim(fields[1])); mebibytes && *mebibytes > 0)
      gpu.memory_bytes = static_cast<std::uint64_t>(*mebibytes) << 20;
    found.gpus.push_back(std::move(gpu));
    found.driver = trim(fields[2]);
  }
  return found;
}

Gpus find_gpus(const std::function<bool()>& is_cancelled) {
  constexpr std::chrono::seconds kPatience{10};
  const launch::ProgramOutput output = launch::output_of(
      {"nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"},
      kPatience, is_cancelled);
  Gpus found = parse_nvidia_smi(output.text);
  if (!found.gpus.empty()) return found;
  found = gpus_of_driver();
  if (output.end == launch::ProgramOutput::End::kTooLate) found.why_less = "nvidia-smi did not end in time";
  if (output.end == launch::ProgramOutput::End::kFailed) found.why_less = "nvidia-smi failed";
  return found;
}

std::optional<double> parse_compute_capability(std::string_view text) {
  std::optional<double> least;
  for (const std::string& line : split(text, '\n')) {
    const std::string_view word = trim(line);
    if (word.empty()) continue;
    double capability = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), capability);
    if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
    least = std::min(least.value_or(capability), capability);
  }
  return least;
}

std::string names_for_nvidia_smi(const Environment& environment, const std::vector<int>& gpu_ids) {
  const std::string visible = environment("CUDA_VISIBLE_DEVICES").value_or("");
  if (gpu_ids.empty()) return visible;
  const std::vector<std::string> names = visible.empty() ? std::vector<std::string>() : split(visible, ',');
  std::string joined;
  for (const int gpu : gpu_ids) {
    const auto index = static_cast<std::size_t>(gpu);
    if (!joined.empty()) joined += ',';
    joined += index < names.size() ? std::string(trim(names[index])) : std::to_string(gpu);
  }
  return joined;
}

std::optional<double> least_compute_capability(const Environment& environment,
                                               const std::vector<int>& gpu_ids) {
  constexpr std::chrono::seconds kPatience{10};
  std::vector<std::string> command = {"nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"};
  const std::string names = names_for_nvidia_smi(environment, gpu_ids);
  if (!names.empty()) command.push_back("--id=" + names);
  return parse_compute_capability(launch::output_of(command, kPatience, [] { return false; }).text);
}

}  // namespace accel::machine
