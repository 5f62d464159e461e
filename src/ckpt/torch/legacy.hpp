#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// Whether the window begins as a file of torch.save before torch 1.6: with the pickle of its magic number.
/// torch.save still writes such files with `_use_new_zipfile_serialization=False`.
[[nodiscard]] bool looks_like_legacy_torch(const FileWindow& window);

/// Whether the window begins as a tar archive, which torch.save wrote before torch 0.1.10.
[[nodiscard]] bool looks_like_tar(const FileWindow& window);
/// What messages say of such a file.
inline constexpr std::string_view kIsTar =
    "is a tar archive, the form of torch.save before torch 0.1.10, which accel does not read";

/// A file of torch.save before torch 1.6: a row of pickles and the storages behind them (docs/formats.md,
/// "torch.save before 1.6").
struct LegacyTorch {
  struct Storage {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  std::vector<std::byte> pickle;            ///< The pickle of the object that was saved.
  std::map<std::string, Storage> storages;  ///< Maps the key of a storage to its place in the window.
  std::uint64_t bytes = 0;                  ///< Where the last storage ends. torch passes over what follows.
};

/// Reads the pickles of such a file, within metadata_limit(), and finds its storages. Throws Error (kCorrupt)
/// unless every storage that the object refers to is there with the size that its reference says.
[[nodiscard]] LegacyTorch read_legacy_torch(const FileWindow& window);

}  // namespace accel::ckpt
