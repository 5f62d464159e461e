#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/foreign_format.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/torch/legacy.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void reject_unknown(const fs::path& path) {
  const File file = File::open_read(path);
  const FileWindow window(file, 0, file.size());
  refuse_foreign_format(file);
  if (path.extension() == ".nemo" && looks_like_tar(window)) {
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is an archive of NeMo", path.string()))
        .hint("unpack it with tar -xf, and name the checkpoint in it, such as model_weights.ckpt");
  }
  if (looks_like_tar(window)) {
    throw Error(ErrorKind::kFailure, fmt::format("'{}' {}", path.string(), kIsTar))
        .hint("load it with torch.load(weights_only=False) and save it again");
  }
  throw Error(
      ErrorKind::kCorrupt,
      fmt::format(
          "'{}' is neither a checkpoint nor a model: it is not a file of torch.save, and not safetensors",
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
