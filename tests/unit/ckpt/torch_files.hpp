#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/summed_file.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/archive.hpp"
#include "ckpt/zip/layout.hpp"
#include "helpers.hpp"

namespace accel::ckpt::testing {

/// A file as torch.save writes it: storage `i` is the record `data/{i}`.
inline void write_torch_file(const std::filesystem::path& path, const pickle::Value& root,
                             const std::vector<std::string>& storages) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& storage : storages) sizes.push_back(storage.size());
  SummedFile file(path);
  TorchArchive(pickle::write(root), sizes).write(file, [&](std::size_t i) { return bytes_of(storages[i]); });
  file.finish();
}

/// A record of an archive: `data`, and zeros behind it up to `size`, which take no space on disk.
struct Record {
  std::string name;
  std::string data;
  std::uint64_t size = 0;
};

/// An archive of any records, as PyTorch lays it out. The CRC of a record with zeros is wrong.
inline void write_zip(const std::filesystem::path& path, const std::vector<Record>& contents) {
  std::vector<ZipRecord> records;
  for (const Record& record : contents)
    records.push_back({record.name, std::max<std::uint64_t>(record.size, record.data.size())});
  const ZipLayout layout(std::move(records));
  std::filesystem::remove(path);
  File file = File::create_new(path);
  std::vector<std::uint32_t> crcs;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const ZipRecord& record = layout.records()[i];
    crcs.push_back(crc32(bytes_of(contents[i].data)));
    file.write_at(record.header_offset, bytes_of(layout.header(i)));
    file.write_at(record.data_offset, bytes_of(contents[i].data));
    const std::string descriptor = layout.descriptor(i, crcs.back());
    file.write_at(record.data_offset + record.size, bytes_of(descriptor));
    end = record.data_offset + record.size + descriptor.size();
  }
  file.write_at(end, bytes_of(layout.directory(crcs)));
}

/// A float32 view of storage `key`, which has that many elements.
inline pickle::Value view_of(std::string_view key, int elements, int offset, const Dims& shape,
                             const Dims& strides) {
  using pickle::Tuple;
  using pickle::Value;
  const auto tuple_of = [](const Dims& dims) {
    Tuple tuple;
    for (const std::int64_t dim : dims) tuple.items.emplace_back(dim);
    return tuple;
  };
  const Tuple id{{"storage", pickle::Global("torch", "FloatStorage"), key, "cpu", elements}};
  return pickle::reduce(pickle::Global("torch._utils", "_rebuild_tensor_v2"),
                        {pickle::Persistent{{Value(id)}}, offset, tuple_of(shape), tuple_of(strides), false,
                         pickle::reduce(pickle::Global("collections", "OrderedDict"), {})});
}

}  // namespace accel::ckpt::testing
