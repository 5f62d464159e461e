#include "ckpt/read/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/interrupt.hpp"
#include "ckpt/dcp_read.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

template <class T>
void sort_by_name(std::vector<T>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const T& a, const T& b) {
    check_interrupted();
    return a.name < b.name;
  });
}

InspectedFile file_in(const fs::path& directory, const std::string& name) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(directory / name, error);
  return {name, error ? 0 : std::uint64_t{bytes}, static_cast<bool>(error)};
}

// A pickle that cannot be read should not hide the rest of the checkpoint.
std::string value_of(DcpReader& reader, const DcpObject& object) {
  check_interrupted();
  try {
    return pickle::describe(reader.read_object(object));
  } catch (const Error& e) {
    return fmt::format("unreadable: {}", e.message());
  }
}

void inspect_dcp(Inspection& result) {
  DcpReader reader(result.path);
  std::set<std::string> files;
  for (const DcpTensor& tensor : reader.metadata().tensors) {
    check_interrupted();
    std::set<std::string> own;
    for (const DcpChunk chunk : tensor.chunks) own.emplace(chunk.where.file());
    files.insert(own.begin(), own.end());
    result.tensors.push_back({tensor.fqn,
                              tensor.dtype,
                              tensor.shape,
                              checked_nbytes(tensor.shape, item_bytes(tensor.dtype)),
                              tensor.chunks.size(),
                              0,
                              {own.begin(), own.end()}});
  }
  for (const DcpObject& object : reader.metadata().objects) {
    files.emplace(object.where.file());
    result.objects.push_back({object.fqn, value_of(reader, object)});
  }
  for (const std::string& file : files) result.files.push_back(file_in(result.path, file));
  if (!reader.metadata().version.empty()) result.metadata["version"] = reader.metadata().version;
}

std::vector<std::string> file_names_of(const std::vector<Extent>& extents) {
  std::set<std::string> names;
  for (const Extent& extent : extents) names.insert(extent.file);
  return {names.begin(), names.end()};
}

// A tensor that cannot be read, as a sparse one, is listed all the same.
StoredTensor locate_if_possible(Checkpoint& checkpoint, std::size_t tensor) {
  try {
    return checkpoint.locate(tensor);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kFailure) throw;
    return {};
  }
}

void inspect_any(Inspection& result) {
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(result.path);
  const bool one_file = has_one_file(result.kind);
  std::set<std::string> files;
  for (std::size_t i = 0; i < checkpoint->tensors().size(); ++i) {
    check_interrupted();
    const TensorEntry& entry = checkpoint->tensors()[i];
    const std::uint64_t bytes = checked_nbytes(entry.shape, item_bytes(entry.dtype));
    InspectedTensor tensor{entry.name, entry.dtype, entry.shape, bytes, entry.pieces, 0, {}};
    if (!one_file) {
      const StoredTensor stored = locate_if_possible(*checkpoint, i);
      tensor.files = file_names_of(stored.extents);
      tensor.copies = stored.copies.size();
      files.insert(tensor.files.begin(), tensor.files.end());
      for (const Extent& copy : stored.copies) files.insert(copy.file);
    }
    result.tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < checkpoint->objects().size(); ++i) {
    result.objects.push_back({checkpoint->objects()[i].name, pickle::describe(checkpoint->read_object(i))});
  }
  for (const std::string& file : files) result.files.push_back(file_in(checkpoint->directory(), file));
  result.metadata = checkpoint->metadata();
}

void list_records(Inspection& result) {
  const File file = File::open_read(result.path);
  const ZipIndex zip(FileWindow(file, 0, file.size()));
  for (const ZipEntry& entry : zip.entries()) result.files.push_back({entry.name, entry.size, false});
}

}  // namespace

bool has_one_file(Kind kind) {
  return kind == Kind::kSafetensors || kind == Kind::kTorch || kind == Kind::kTorchScript;
}

std::uint64_t Inspection::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const InspectedTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

Inspection inspect(const fs::path& path) {
  Inspection result;
  result.path = path;
  result.kind = kind_of(path);
  try {
    if (result.kind == Kind::kDcp) {
      inspect_dcp(result);
    } else {
      inspect_any(result);
    }
    if (result.kind == Kind::kTorch || result.kind == Kind::kTorchScript) list_records(result);
  } catch (Error& e) {
    if (e.message().find(path.string()) == std::string::npos)
      e.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
  sort_by_name(result.tensors);
  sort_by_name(result.objects);
  sort_by_name(result.files);
  return result;
}

InspectedDirectory inspect_all(const fs::path& path) {
  if (kind_of(path) != Kind::kDirectory) return {{inspect(path)}, {}};
  CheckpointList list = list_checkpoints(path);
  InspectedDirectory found{{}, std::move(list.damaged)};
  for (const fs::path& below : list.checkpoints) {
    if (kind_of(below) != Kind::kUnknown) found.checkpoints.push_back(inspect(below));
  }
  if (found.checkpoints.empty() && found.damaged.empty())
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no checkpoint and no model", path.string()));
  return found;
}

}  // namespace accel::ckpt
