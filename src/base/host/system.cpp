#include "base/host/system.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/text.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

/// The names of the kernel, for x86 and ARM.
constexpr std::array<std::string_view, 16> kFeatures = {
    "avx2",     "fma",      "f16c",     "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "asimd",   "asimdhp",  "bf16",        "i8mm",        "sve"};

}  // namespace

std::string kernel_name() {
  utsname name{};
  ::uname(&name);
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

std::optional<std::string> kernel_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return in ? std::optional<std::string>({std::istreambuf_iterator<char>(in), {}}) : std::nullopt;
}

std::string distribution_name(const fs::path& root) {
  for (const char* file : {"etc/os-release", "usr/lib/os-release"}) {
    std::ifstream in(root / file);
    for (std::string line; std::getline(in, line);) {
      constexpr std::string_view kKey = "PRETTY_NAME=";
      if (!line.starts_with(kKey)) continue;
      std::string_view name = trim(std::string_view(line).substr(kKey.size()));
      if (name.size() >= 2 && (name.front() == '"' || name.front() == '\'') && name.back() == name.front())
        name = name.substr(1, name.size() - 2);
      return std::string(name);
    }
  }
  return "";
}

Processor processor(const fs::path& root) {
  Processor found;
  std::ifstream in(root / "proc/cpuinfo");
  // Each CPU has a paragraph of its own.
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trim(std::string_view(line).substr(0, colon));
    const std::string_view value = trim(std::string_view(line).substr(colon + 1));
    if (key == "model name") found.model = value;
    if (key != "flags" && key != "Features") continue;
    const std::vector<std::string> all = split(value, ' ');
    for (const std::string_view feature : kFeatures) {
      if (std::find(all.begin(), all.end(), feature) != all.end()) found.features.emplace_back(feature);
    }
  }
  return found;
}

}  // namespace accel
