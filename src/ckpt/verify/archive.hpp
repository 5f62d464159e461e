#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "ckpt/io/byte_source.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/verify/finding.hpp"
#include "ckpt/verify/sums.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// The archive to check: `length` bytes at `offset` of `file`. Names go into the findings.
struct ArchivePlace {
  std::string file;    ///< As findings name it.
  std::string tensor;  ///< The tensor or object in it; empty for an archive of many.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// What check_archive found out.
struct ArchiveCheck {
  std::vector<Finding> findings;
  std::vector<PendingSum> sums;         ///< Of records too large to be read at once.
  std::optional<ZipIndex> zip;          ///< Nothing if the directory cannot be read.
  std::optional<pickle::Value> pickle;  ///< data.pkl, if it is there and sound.
};

/// Checks a torch zip: its directory, every record's local header and data descriptor against it, the CRC of
/// small and of compressed records, that records do not overlap, and that data.pkl can be parsed. All
/// that is wrong becomes a finding; only failures of the system are thrown.
[[nodiscard]] ArchiveCheck check_archive(const File& file, const ArchivePlace& place);

/// The same of an archive that `source`, a compressed stream, unpacks to; all of it is summed here. `place`
/// is that of the stream.
[[nodiscard]] ArchiveCheck check_archive(ByteSource& source, const ArchivePlace& place);

/// Checks that the archive, if it could be read, has a data.pkl.
void check_has_pickle(const ArchivePlace& place, ArchiveCheck& archive);

/// Checks that the archive, if it could be read, holds a tensor of this type and shape, all of it.
void check_chunk(DType dtype, std::span<const std::int64_t> sizes, const ArchivePlace& place,
                 ArchiveCheck& archive);

/// Checks that the storage of `tensor` is in the archive, and is large enough.
void check_storage(const TorchTensor& tensor, const ArchivePlace& place, ArchiveCheck& archive);

}  // namespace accel::ckpt
