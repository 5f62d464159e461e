#include "core/machine/python.hpp"

#include <chrono>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/launch/find_program.hpp"
#include "core/launch/output/program_output.hpp"

namespace accel::machine {
namespace {

/// The working directory leaves the path of modules first, so that no file there takes the place of a module.
constexpr const char* kProgram = R"(import sys
sys.path = [folder for folder in sys.path if folder]
print("python", sys.version.split()[0])
from importlib import metadata
for name in ("torch", "accelerate"):
    try:
        print(name, metadata.version(name))
    except Exception:
        pass
)";

}  // namespace

void parse_python(std::string_view text, Python& python) {
  for (const std::string& line : split(text, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string name = line.substr(0, blank);
    const std::string version(trim(std::string_view(line).substr(blank)));
    if (name == "python") python.version = version;
    if (name == "torch" || name == "accelerate") python.packages[name] = version;
  }
}

Python find_python(const Environment& environment, const std::function<bool()>& is_cancelled) {
  Python python;
  try {
    python.path = launch::find_program("python3", environment).string();
  } catch (const Error&) {
    return python;
  }
  constexpr std::chrono::seconds kPatience{10};
  const launch::ProgramOutput output =
      launch::output_of({python.path, "-c", kProgram}, kPatience, is_cancelled);
  parse_python(output.text, python);
  if (!python.version.empty()) return python;
  python.why_less =
      output.end == launch::ProgramOutput::End::kTooLate ? "it did not end in time" : "it failed";
  return python;
}

}  // namespace accel::machine
