#include "ckpt/verify/archive.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <libdeflate.h>

#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/archive.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::pattern;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

constexpr std::uint64_t kLead = 64;  // The archives under test do not begin where their file begins.

class VerifyArchiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::uint64_t> bytes{40, 200'000};
    large_ = pattern(200'000, 5);
    SummedFile file(dir_ / "whole");
    file.append_zeros(kLead);
    TorchArchive(pickle::write(pickle_of_tensor(DType::kUInt8, {40}, "0")), bytes)
        .write(file, [&](std::size_t i) { return i == 0 ? bytes_of(small_) : bytes_of(large_); });
    file.finish();
    archive_ = read_file(dir_ / "whole");
  }

  ArchiveCheck check() {
    write_file(dir_ / "a", archive_);
    return check_archive(File::open_read(dir_ / "a"), {"a", "w", kLead, archive_.size() - kLead});
  }

  // The findings, each as "kind: text".
  std::vector<std::string> findings() {
    std::vector<std::string> texts;
    for (const Finding& finding : check().findings) {
      EXPECT_EQ(finding.file, "a");
      EXPECT_EQ(finding.tensor, "w");
      EXPECT_GE(finding.begin, kLead);
      texts.push_back(fmt_of(finding));
    }
    return texts;
  }

  static std::string fmt_of(const Finding& finding) {
    return std::string(name_of(finding.kind)) + ": " + finding.text;
  }

  // The last occurrence of a name is the one in the directory.
  [[nodiscard]] std::size_t directory_of(std::string_view name) const { return archive_.rfind(name) - 46; }

  TempDir dir_;
  std::string small_ = pattern(40, 90);
  std::string large_;
  std::string archive_;
};

TEST_F(VerifyArchiveTest, ASoundArchiveHasItsLargeRecordsStillToSum) {
  const ArchiveCheck found = check();
  EXPECT_THAT(found.findings, IsEmpty());
  ASSERT_EQ(found.sums.size(), 1U);
  const SumClaim& claim = found.sums[0].claim;
  EXPECT_EQ(claim.file, dir_ / "a");
  EXPECT_EQ(archive_.substr(claim.begin, claim.length), large_);
  EXPECT_EQ(claim.crc32, crc32(bytes_of(large_)));
  EXPECT_EQ(to_string(found.sums[0].finding),
            fmt::format("checksum: a, bytes {} to {}, 'w': record 'archive/data/1'", claim.begin,
                        claim.begin + claim.length));
  ASSERT_TRUE(found.pickle.has_value());
  EXPECT_EQ(torch_tensor_of(*found.pickle)->shape, (Dims{40}));
}

TEST_F(VerifyArchiveTest, FlippedBytesOfSmallRecords) {
  archive_[archive_.find(small_)] ^= 4;
  archive_[archive_.find("little")] ^= 4;
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("checksum: record 'archive/byteorder' has CRC"),
                                      HasSubstr("checksum: record 'archive/data/0' has CRC")));
}

TEST_F(VerifyArchiveTest, LocalHeadersThatContradictTheDirectory) {
  archive_[archive_.find("archive/data/0") + 3] ^= 4;
  archive_[archive_.find("archive/version") - 30] ^= 4;      // Signature.
  archive_[archive_.find("archive/byteorder") - 24] ^= 1;    // Flags.
  archive_[archive_.find("archive/.format") - 30 + 8] ^= 8;  // Method.
  EXPECT_THAT(
      findings(),
      ElementsAre(HasSubstr("'archive/.format_version' has other flags, or another method"),
                  HasSubstr("'archive/byteorder' has other flags"), HasSubstr("is called 'arclive/data/0'"),
                  HasSubstr("'archive/version' has no local header")));
}

TEST_F(VerifyArchiveTest, ADescriptorThatContradictsTheDirectory) {
  const std::size_t at = archive_.find("PK\7\10", archive_.find(small_));
  archive_[at + 8] ^= 1;
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("'archive/data/0' has no data descriptor")));
}

TEST_F(VerifyArchiveTest, EndRecordsThatContradictThemselves) {
  archive_[archive_.size() - 22 + 8] ^= 16;
  archive_[archive_.size() - 42 + 4] ^= 16;
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("end record contradicts its directory"),
                                      HasSubstr("zip64 end record contradicts itself")));
}

TEST_F(VerifyArchiveTest, RecordsThatOverlap) {
  // data/1 begins where data/0 does, says the directory.
  const std::size_t from = directory_of("archive/data/0") + 42;
  archive_.replace(directory_of("archive/data/1") + 42, 4, archive_.substr(from, 4));
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("overlap: record 'archive/data/1' overlaps 'archive/data/0'"),
                                      HasSubstr("'archive/data/1' is called 'archive/data/0'")));
}

TEST_F(VerifyArchiveTest, NoArchiveAtAll) {
  archive_ = std::string(500, 'x');
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("broken: the end record of the zip archive is missing")));
}

TEST_F(VerifyArchiveTest, AStorageThatIsMissingOrShort) {
  const ArchivePlace place{"a", "w", 0, 10};
  ArchiveCheck archive = check();
  TorchTensor tensor;
  tensor.storage_key = "0";
  tensor.storage_bytes = 40;
  check_storage(tensor, place, archive);
  EXPECT_THAT(archive.findings, IsEmpty());
  tensor.storage_bytes = 41;
  check_storage(tensor, place, archive);
  tensor.storage_key = "9";
  check_storage(tensor, place, archive);
  ASSERT_EQ(archive.findings.size(), 2U);
  EXPECT_THAT(fmt_of(archive.findings[0]),
              HasSubstr("mismatch: record 'data/0' has 40 bytes, its pickle says 41"));
  EXPECT_THAT(fmt_of(archive.findings[1]), HasSubstr("no record 'data/9'"));
}

// A record as TorchScript writes its code: deflated.
std::string deflated_archive(std::string_view text, std::uint64_t size_claimed, std::uint32_t crc) {
  std::string stored(text.size() + 100, '\0');
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(6);
  stored.resize(
      libdeflate_deflate_compress(compressor, text.data(), text.size(), stored.data(), stored.size()));
  libdeflate_free_compressor(compressor);
  const auto common = [&](std::string& out) {
    put_uint(out, 0, 2);  // Version, flags, method, time, date, CRC, sizes.
    put_uint(out, 0, 2);
    put_uint(out, 8, 2);
    put_uint(out, 0, 4);
    put_uint(out, crc, 4);
    put_uint(out, stored.size(), 4);
    put_uint(out, size_claimed, 4);
    put_uint(out, 3, 2);
    put_uint(out, 0, 2);
  };
  std::string out = "PK\3\4";
  common(out);
  out += "m/c" + stored;
  const std::size_t directory = out.size();
  out += "PK\1\2";
  put_uint(out, 0, 2);
  common(out);
  out.append(14, '\0');
  out += "m/c";
  const std::size_t end = out.size();
  out += "PK\5\6";
  put_uint(out, 0, 4);
  put_uint(out, 1, 2);
  put_uint(out, 1, 2);
  put_uint(out, end - directory, 4);
  put_uint(out, directory, 4);
  put_uint(out, 0, 2);
  return out;
}

TEST_F(VerifyArchiveTest, AChunkOfTheMetaDeviceHasNoData) {
  const auto finding = [&](const Dims& sizes) {
    TorchTensor tensor;
    tensor.shape = sizes;
    tensor.strides = row_major_strides(sizes);
    tensor.storage_key = "0";
    tensor.storage_bytes = 12;
    tensor.on_meta = true;
    ArchiveCheck archive;
    archive.pickle = pickle_of_tensor(tensor);
    check_chunk(DType::kFloat32, sizes, {"a", "w", 0, 1}, archive);
    return archive.findings.empty() ? "" : fmt_of(archive.findings.front());
  };
  EXPECT_THAT(finding({3}), HasSubstr("hole: its archive holds a tensor of the meta device, without data"));
  EXPECT_EQ(finding({0}), "");
}

TEST(VerifyDeflatedTest, AreInflatedAndSummed) {
  const TempDir dir;
  const std::string text(5000, 'a');
  const std::uint32_t crc = crc32(bytes_of(text));
  const auto findings = [&](std::uint64_t size, std::uint32_t sum) {
    const std::string archive = deflated_archive(text, size, sum);
    write_file(dir / "a", archive);
    std::string texts;
    for (const Finding& f :
         check_archive(File::open_read(dir / "a"), {"a", "", 0, archive.size()}).findings) {
      texts += f.text + "\n";
    }
    return texts;
  };
  EXPECT_EQ(findings(5000, crc), "");
  EXPECT_THAT(findings(5000, crc ^ 1), HasSubstr("has CRC"));
  EXPECT_THAT(findings(4999, crc), HasSubstr("cannot be unpacked"));
  EXPECT_THAT(findings(100'000'000, crc), HasSubstr("has 100000000 bytes packed in"));
  EXPECT_THAT(findings(0xfffffff0, crc), HasSubstr("is too large to be read at once"));
}

}  // namespace
}  // namespace accel::ckpt
