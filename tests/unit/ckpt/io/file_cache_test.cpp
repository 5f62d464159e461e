#include "ckpt/io/file_cache.hpp"

#include <gtest/gtest.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

TEST(FileCacheTest, KeepsTheMostRecentlyUsed) {
  const TempDir dir;
  for (const char* name : {"a", "b", "c"}) write_file(dir / name, name);
  FileCache cache(dir.path(), 2);
  const int a = cache.open("a").fd();
  (void)cache.open("b");
  EXPECT_EQ(cache.open("a").fd(), a);
  (void)cache.open("c");  // Closes b.
  EXPECT_EQ(cache.open("a").fd(), a);
  EXPECT_EQ(cache.open("b").size(), 1U);
}

TEST(FileCacheTest, RefusesNamesThatLeadOut) {
  const TempDir dir;
  FileCache cache(dir.path());
  for (const std::string& name :
       std::vector<std::string>{"../x", "a/../../x", "/etc/passwd", "", {"a\0b", 3}}) {
    (void)error_of(ErrorKind::kCorrupt, [&] { (void)cache.open(name); });
  }
}

TEST(FileCacheTest, AnAbsentFileIsMissing) {
  const TempDir dir;
  FileCache cache(dir.path());
  (void)error_of(ErrorKind::kMissing, [&] { (void)cache.open("__0_0.distcp"); });
}

}  // namespace
}  // namespace accel::ckpt
