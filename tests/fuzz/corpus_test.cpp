// The targets read the corpus, which has the seeds of the fuzzers and what they found, in every run of the
// tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "../unit/temp_dir.hpp"
#include "targets.hpp"

namespace accel::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class CorpusTest : public ::testing::TestWithParam<Target> {};

TEST_P(CorpusTest, IsReadOrRejected) {
  const std::vector<fs::path> files = files_in(fs::path(ACCEL_FUZZ_CORPUS) / GetParam().name);
  EXPECT_GE(files.size(), 4U);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const std::string input = testing::read_file(file);
    run_target(GetParam().name, std::as_bytes(std::span(input)));
    // Prefixes of the file, and the file with single bytes changed, to look a little further than the files.
    for (std::size_t part = 1; part < 8; ++part) {
      std::string changed = input.substr(0, input.size() * part / 8);
      run_target(GetParam().name, std::as_bytes(std::span(changed)));
      changed = input;
      if (!changed.empty()) changed[(changed.size() - 1) * part / 8] ^= 0x41;
      run_target(GetParam().name, std::as_bytes(std::span(changed)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CorpusTest, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(CorpusFoldersTest, EveryFolderHasATarget) {
  std::vector<std::string> names;
  for (const Target& target : targets()) names.emplace_back(target.name);
  EXPECT_EQ(names, testing::names_in(ACCEL_FUZZ_CORPUS));
}

}  // namespace
}  // namespace accel::fuzz
