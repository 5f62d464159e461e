#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/io/byte_source.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/verify/finding.hpp"
#include "ckpt/verify/sums.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// Where the archive to check lies: `length` bytes at `offset` of `file`. The names go into the findings.
struct ArchivePlace {
  std::string file;    ///< The name of the file in findings.
  std::string tensor;  ///< The tensor or object in it; empty for an archive of many.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// The result of check_archive.
struct ArchiveCheck {
  std::vector<Finding> findings;
  std::vector<PendingSum> sums;         ///< The checksums of records too large to be read at once.
  std::optional<ZipIndex> zip;          ///< Nothing if the directory cannot be read.
  std::optional<pickle::Value> pickle;  ///< The value of data.pkl, if it is there and sound.
};

/// Checks an archive of torch: its directory; the local header and data descriptor of every record against
/// the directory; the CRC of small and of compressed records; that records do not overlap; that data.pkl can
/// be parsed. Every defect becomes a finding. Throws Error only if the system fails.
[[nodiscard]] ArchiveCheck check_archive(const File& file, const ArchivePlace& place);

/// Checks the archive that the compressed stream `source` unpacks to. All of its records are summed at
/// once. `place` is where the stream lies.
[[nodiscard]] ArchiveCheck check_archive(ByteSource& source, const ArchivePlace& place);

/// Checks that the archive, if it could be read, has a data.pkl.
void check_has_pickle(const ArchivePlace& place, ArchiveCheck& archive);

/// Checks that the archive, if it could be read, holds a tensor of this dtype and shape with its storage.
void check_chunk(DType dtype, std::span<const std::int64_t> sizes, const ArchivePlace& place,
                 ArchiveCheck& archive);

/// Checks that the storage of `tensor` is in the archive, and is large enough.
void check_storage(const TorchTensor& tensor, const ArchivePlace& place, ArchiveCheck& archive);

}  // namespace accel::ckpt
