#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/search.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Whether torch.save wrote the file before torch 1.6. Such a file is not an archive but a row of pickles, the
// first of which is a magic number.
bool is_legacy_torch(const fs::path& path) {
  constexpr std::array<unsigned char, 14> kMagic = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c,
                                                    0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
  const File file = File::open_read(path);
  if (file.size() < kMagic.size()) return false;
  std::array<unsigned char, kMagic.size()> start{};
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  return start == kMagic;
}

[[noreturn]] void reject_unknown(const fs::path& path) {
  if (is_legacy_torch(path)) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' is in the format of torch.save before torch 1.6, which accel does not read",
                            path.string()))
        .hint("load it with torch and save it again");
  }
  throw Error(
      ErrorKind::kCorrupt,
      fmt::format(
          "'{}' is neither a checkpoint nor a model: it is not a zip archive of torch, and not safetensors",
          path.string()))
      .hint(path.extension() == ".bin" || path.extension() == ".pt" ? "the file may be truncated" : "");
}

fs::path directory_of(const fs::path& path) { return fs::is_directory(path) ? path : parent_of(path); }

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const fs::path& path) {
  switch (kind_of(path)) {
    case Kind::kDcp:
      return open_dcp(path);
    case Kind::kDcpSafetensors:
      return open_dcp_safetensors(directory_of(path));
    case Kind::kSafetensors:
      return open_safetensors(path);
    case Kind::kSafetensorsSharded:
      return open_sharded_safetensors(directory_of(path));
    case Kind::kTorch:
      return open_torch(path);
    case Kind::kTorchSharded:
      return open_sharded_torch(directory_of(path));
    case Kind::kTorchScript:
      return open_torchscript(path);
    case Kind::kPt2:
      return open_pt2(path);
    case Kind::kLocal:
      return open_local(path);
    case Kind::kDtensor:
      return open_dtensor(path);
    case Kind::kDirectory:
      return open_checkpoint(find_checkpoint(path, Want::kAny).path);
    case Kind::kUnknown:
      break;
  }
  reject_unknown(path);
}

}  // namespace accel::ckpt
