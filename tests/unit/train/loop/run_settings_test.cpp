#include "train/loop/run_settings.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/keys/number_settings.hpp"
#include "temp_dir.hpp"
#include "train/loop/samples.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using Settings = std::map<std::string, std::string>;

constexpr const char* kContents = "contents of training.data.train (CRC-32 of samples)";

Settings settings_on(const TempDir& dir, const std::string& text) {
  write_file(dir / "text", text);
  config::Config config;
  config.training.emplace();
  config.training->data.train = {"text", (dir / "text").string(), 8, ""};
  return settings_of(config, 0, Samples::open(config.training->data.train, {}), {}, Mesh{}, "none");
}

TEST(RunSettingsTest, AChangedTailIsSaidOnce) {
  const TempDir dir;
  std::string text(3000, 'a');
  const Settings before = settings_on(dir, text);
  EXPECT_TRUE(config::changed_settings(before, settings_on(dir, text)).empty());
  text.back() = 'b';
  const std::vector<std::string> changes = config::changed_settings(before, settings_on(dir, text));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes.front().starts_with(kContents)) << changes.front();
}

TEST(RunSettingsTest, HeldOutSamplesOfAnotherLengthAreOthers) {
  const TempDir dir;
  write_file(dir / "text", std::string(3000, 'a'));
  const auto settings_with = [&](std::int64_t length) {
    config::Config config;
    const config::DataSource source{"text", (dir / "text").string(), length, ""};
    config.training.emplace().data.train = source;
    std::vector<HeldOutSamples> held_out;
    held_out.push_back({"", Samples::open(source, {})});
    return settings_of(config, 0, held_out.front().samples, held_out, Mesh{}, "none");
  };
  const Settings now = settings_with(16);
  EXPECT_TRUE(has_other_held_out(settings_with(8), now, ""));
  EXPECT_FALSE(has_other_held_out(settings_with(16), now, ""));
  Settings earlier = now;  // Earlier versions wrote the fingerprint alone.
  std::string& value = earlier.at("contents of training.data.eval (CRC-32 of samples)");
  value = value.substr(0, 8);
  EXPECT_FALSE(has_other_held_out(earlier, now, ""));
}

}  // namespace
}  // namespace accel::train
