#include "ckpt/torch/file.hpp"

#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using testing::error_of;
using ::testing::HasSubstr;
using testing::pattern;
using testing::read_file;
using testing::TempDir;
using testing::view_of;
using testing::write_torch_file;
using testing::write_zip;

TEST(TorchFileTest, FindsTheElementsOfATensor) {
  const TempDir dir;
  write_torch_file(dir / "m.bin", view_of("0", 6, 2, {2}, {1}), {pattern(24, 1)});
  const File file = File::open_read(dir / "m.bin");
  const TorchFile archive(FileWindow(file, 0, file.size()));
  const std::optional<TorchTensor> found = torch_tensor_of(archive.read_pickle());
  ASSERT_TRUE(found);
  const std::uint64_t at = archive.offset_of(*found);
  EXPECT_EQ(read_file(dir / "m.bin").substr(at, 8), pattern(24, 1).substr(8, 8));
}

TEST(TorchFileTest, RefusesOtherByteOrders) {
  const TempDir dir;
  const auto read = [&](const std::string& order) {
    write_zip(dir / "m.bin", {{"m/data.pkl", pickle::write(7)}, {"m/byteorder", order}});
    const File file = File::open_read(dir / "m.bin");
    (void)TorchFile(FileWindow(file, 0, file.size())).read_pickle();
  };
  read("little");
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { read("big"); }), HasSubstr("big-endian"));
}

// Sizes and offsets do not fit 32 bits. The file is sparse and takes no space.
TEST(TorchFileTest, RecordsBeyondFourGigabytes) {
  constexpr std::int64_t kElements = std::int64_t{5} << 28;
  const TempDir dir;
  const auto tensor = [](std::string_view key, std::int64_t elements, std::int64_t offset) {
    pickle::ObjectParts parts = **view_of(key, 4, 0, {4}, {1}).get<pickle::Object>();
    parts.args[0] = pickle::Persistent{
        {pickle::Tuple{{"storage", pickle::Global("torch", "FloatStorage"), key, "cpu", elements}}}};
    parts.args[1] = offset;
    return pickle::Value(pickle::Object(parts));
  };
  const Dict root{{{"first", tensor("0", kElements, 0)},
                   {"last", tensor("0", kElements, kElements - 4)},
                   {"behind", tensor("1", 4, 0)}}};
  const std::string begin = pattern(16, 1);
  const std::string behind = pattern(16, 2);
  write_zip(dir / "m.bin",
            {{"m/data.pkl", pickle::write(root)}, {"m/data/0", begin, kElements * 4}, {"m/data/1", behind}});
  const auto checkpoint = open_torch(dir / "m.bin");
  EXPECT_EQ(testing::read_tensor(*checkpoint, "first"), begin);
  EXPECT_EQ(testing::read_tensor(*checkpoint, "last"), std::string(16, '\0'));
  EXPECT_EQ(testing::read_tensor(*checkpoint, "behind"), behind);
}

}  // namespace
}  // namespace accel::ckpt
