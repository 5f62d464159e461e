#include "ckpt/convert/script_device.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace accel::ckpt {
namespace {

using namespace std::string_literals;

std::string on_cpu(const std::string& pickle, const std::set<std::string>& keys) {
  return with_storages_on_cpu(std::as_bytes(std::span(pickle)), keys);
}

std::string text(std::string_view value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + std::string(value);
}

/// The persistent id of a storage as torch's C++ code pickles it; `device` are the opcodes that push the
/// device.
std::string storage(const std::string& key, const std::string& device) {
  return "(" + text("storage") + "ctorch\nFloatStorage\n" + text(key) + device + "K\x04tQ";
}

TEST(ScriptDeviceTest, StoragesThatAreNamedComeOntoTheCpu) {
  const std::string both = "\x80\x02(" + storage("0", text("meta")) + storage("1", text("meta")) + "t.";
  EXPECT_EQ(on_cpu(both, {"0", "1"}),
            "\x80\x02(" + storage("0", text("cpu")) + storage("1", text("cpu")) + "t.");
  EXPECT_EQ(on_cpu(both, {"1"}), "\x80\x02(" + storage("0", text("meta")) + storage("1", text("cpu")) + "t.");
  EXPECT_EQ(on_cpu(both, {}), both);
}

TEST(ScriptDeviceTest, AMemoIsReadAsItWas) {
  // The second storage fetches the device, and then a name is fetched that is the same text.
  const std::string given =
      "\x80\x02(" + storage("0", text("meta") + "q\x05") + storage("1", "h\x05") + "h\x05t.";
  EXPECT_EQ(on_cpu(given, {"0", "1"}),
            "\x80\x02(" + storage("0", text("cpu") + "q\x05") + storage("1", "h\x05") + text("meta") + "t.");
  EXPECT_EQ(on_cpu(given, {"0"}), "\x80\x02(" + storage("0", text("cpu") + "q\x05") +
                                      storage("1", text("meta")) + text("meta") + "t.");
  EXPECT_EQ(on_cpu(given, {"1"}),
            "\x80\x02(" + storage("0", text("meta") + "q\x05") + storage("1", text("cpu")) + "h\x05t.");
  // The text is a name first.
  const std::string name = "\x80\x02(" + text("meta") + "q\x01" + storage("0", "h\x01") + "h\x01t.";
  EXPECT_EQ(on_cpu(name, {"0"}),
            "\x80\x02(" + text("meta") + "q\x01" + storage("0", text("cpu")) + "h\x01t.");
}

TEST(ScriptDeviceTest, AnotherFormOfStoragesIsRefused) {
  EXPECT_THROW(on_cpu("\x80\x02(" + text("storage") + text("0") + "tQ.", {"0"}), Error);
  EXPECT_THROW(on_cpu("\x80\x02(" + text("storage"), {"0"}), Error);
}

}  // namespace
}  // namespace accel::ckpt
