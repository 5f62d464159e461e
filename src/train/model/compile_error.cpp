#include "train/model/compile_error.hpp"

#include <fmt/format.h>
#include <torch/version.h>

#include <string>

#include "base/text.hpp"

namespace accel::train {

// The report is an empty line, the reason, "File NAME, line N", lines of code, and an arrow under one of
// them.
Error compile_error(const std::filesystem::path& path, const torch::jit::ErrorReport& error) {
  std::string reason;
  std::string place;
  std::string before;
  for (const std::string& line : split(error.what(), '\n')) {
    const std::string text(trim(line));
    if (reason.empty()) reason = text;
    if (place.empty() && text.starts_with("File ")) place = text;
    if (text.ends_with("<--- HERE") && !before.empty()) {
      place += ": " + before;
      break;
    }
    before = text;
  }
  return Error(ErrorKind::kUsage,
               fmt::format("'{}': libtorch {} cannot compile the model's TorchScript: {}{}", path.string(),
                           TORCH_VERSION, reason, place.empty() ? "" : fmt::format(" ({})", place)))
      .hint("was the model exported with a newer torch? export it with the version of the worker's libtorch");
}

}  // namespace accel::train
