#include "core/machine/python.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "temp_dir.hpp"

namespace accel::machine {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

bool never() { return false; }

/// A python3 along PATH that is a shell script.
class PythonTest : public ::testing::Test {
 protected:
  Python with(const std::string& script) {
    write_file(dir_ / "python3", "#!/bin/sh\n" + script + "\n");
    ::chmod((dir_ / "python3").c_str(), 0755);
    return find_python(path_, never);
  }

  TempDir dir_;
  Environment path_ = [this](const std::string& name) {
    return name == "PATH" ? std::optional(dir_.path().string()) : std::nullopt;
  };
};

TEST_F(PythonTest, IsNotThere) {
  const Python none = find_python(path_, never);
  EXPECT_EQ(none.path, "");
  EXPECT_EQ(none.why_less, "");
}

TEST_F(PythonTest, SaysItsVersionsAmongOtherLines) {
  const Python python =
      with("echo welcome; echo python 3.11.2; echo torch 2.9.1+cpu; echo numpy 2; echo accelerate 1.12.0");
  EXPECT_EQ(python.path, (dir_ / "python3").string());
  EXPECT_EQ(python.version, "3.11.2");
  EXPECT_THAT(python.packages, ElementsAre(Pair("accelerate", "1.12.0"), Pair("torch", "2.9.1+cpu")));
}

TEST_F(PythonTest, Fails) {
  const Python python = with("echo python 3.11.2; exit 1");
  EXPECT_EQ(python.version, "");
  EXPECT_THAT(python.packages, IsEmpty());
  EXPECT_EQ(python.why_less, "it failed");
}

}  // namespace
}  // namespace accel::machine
