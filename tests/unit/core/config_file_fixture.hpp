#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/config/settings/settings.hpp"
#include "temp_dir.hpp"

namespace accel::config::testing {

/// A directory with a model, data and a configuration that works; each test changes something.
class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFileTest() {
    accel::testing::write_file(dir_ / "gpt.pt", "model");
    accel::testing::write_file(dir_ / "a.txt", "data");
    accel::testing::write_file(dir_ / "b.txt", "data");
  }

  /// The smallest training section, as a flow mapping without its last brace.
  [[nodiscard]] std::string training(std::string_view more = "") const {
    return fmt::format(
        "training: {{model: {{path: {0}/gpt.pt}}, data: {{train: {{format: text, path: {0}/*.txt, "
        "sequence_length: 8}}}}, max_steps: 10{1}}}\n",
        dir_.path().string(), more);
  }

  LoadedConfig load(std::string_view yaml, std::vector<std::string> assignments = {}, bool program = false) {
    accel::testing::write_file(dir_ / "run.yaml", yaml);
    ConfigRequest request;
    request.file = dir_ / "run.yaml";
    request.runs_program = program;
    request.only_plans = only_plans_;
    request.visible_gpus = gpus_;
    request.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    for (const std::string& text : assignments) request.flags.push_back(settings_from_assignment(text));
    return load_config(request);
  }

  /// The error, without the directory in front of the file's name.
  std::string error_of(std::string_view yaml, std::vector<std::string> assignments = {},
                       bool program = false) {
    try {
      (void)load(yaml, std::move(assignments), program);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      std::string text = error.message();
      const std::string prefix = dir_.path().string() + "/";
      for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
        text.erase(at, prefix.size());
      }
      return text;
    }
    return "no error";
  }

  accel::testing::TempDir dir_;
  int gpus_ = 0;
  bool only_plans_ = false;
  std::map<std::string, std::string> variables_;
};

}  // namespace accel::config::testing
