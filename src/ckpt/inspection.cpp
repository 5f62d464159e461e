#include "ckpt/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "ckpt/dcp_read.hpp"
#include "ckpt/pickle_reader.hpp"
#include "ckpt/torch_tensor.hpp"
#include "ckpt/zip_index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

template <class T>
void sort_by_name(std::vector<T>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const T& a, const T& b) { return a.name < b.name; });
}

InspectedFile file_in(const fs::path& directory, const std::string& name) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(directory / name, error);
  return {name, error ? 0 : std::uint64_t{bytes}, static_cast<bool>(error)};
}

// A pickle that cannot be read should not hide the rest of the checkpoint.
std::string value_of(DcpReader& reader, const DcpObject& object) {
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
    std::set<std::string> own;
    for (const DcpChunk& chunk : tensor.chunks) own.insert(chunk.where.file);
    files.insert(own.begin(), own.end());
    result.tensors.push_back({tensor.fqn,
                              tensor.dtype,
                              tensor.shape,
                              checked_nbytes(tensor.shape, item_bytes(tensor.dtype)),
                              tensor.chunks.size(),
                              {own.begin(), own.end()}});
  }
  for (const DcpObject& object : reader.metadata().objects) {
    files.insert(object.where.file);
    result.objects.push_back({object.fqn, value_of(reader, object)});
  }
  for (const std::string& file : files) result.files.push_back(file_in(result.path, file));
  if (!reader.metadata().version.empty()) result.metadata["version"] = reader.metadata().version;
}

void inspect_safetensors(Inspection& result) {
  const SafetensorsHeader header = read_safetensors_header(File::open_read(result.path));
  for (const SafetensorsEntry& entry : header.entries) {
    result.tensors.push_back({entry.name, entry.dtype, entry.shape, entry.end - entry.begin, 1, {}});
  }
  result.metadata = header.metadata;
}

// Walks a pickle for tensors: through containers by key, through objects (as TorchScript's modules) by
// attribute.
class TensorFinder {
 public:
  explicit TensorFinder(Inspection& result) : result_(result) {}

  void visit(const pickle::Value& value, const std::string& name) {
    if (const auto tensor = torch_tensor_of(value)) {
      result_.tensors.push_back({name,
                                 tensor->dtype,
                                 tensor->shape,
                                 checked_nbytes(tensor->shape, item_bytes(tensor->dtype)),
                                 1,
                                 {}});
      return;
    }
    if (const auto* pairs = pickle::mapping_of(value)) {
      visit_pairs(*pairs, name);
    } else if (const auto* items = pickle::sequence_of(value)) {
      for (std::size_t i = 0; i < items->size(); ++i) visit((*items)[i], join(name, std::to_string(i)));
    } else if (const auto* object = value.get<pickle::Object>()) {
      for (const pickle::Value& state : (*object)->states) visit(state, name);
      for (const pickle::Value& arg : (*object)->args) {
        if (pickle::mapping_of(arg) != nullptr || arg.get<pickle::Object>() != nullptr) visit(arg, name);
      }
    } else if (!name.empty()) {
      result_.objects.push_back({name, pickle::describe(value)});
    }
  }

 private:
  static std::string join(const std::string& name, const std::string& key) {
    return name.empty() ? key : name + "." + key;
  }

  void visit_pairs(const pickle::Pairs& pairs, const std::string& name) {
    for (const auto& [key, item] : pairs) {
      const auto* text = key.get<std::string>();
      visit(item, join(name, text != nullptr ? *text : pickle::describe(key)));
    }
  }

  Inspection& result_;
};

void inspect_torch(Inspection& result) {
  const File file = File::open_read(result.path);
  const FileWindow window(file, 0, file.size());
  const ZipIndex zip(window);
  for (const ZipEntry& entry : zip.entries()) result.files.push_back({entry.name, entry.size, false});
  const ZipEntry* data = zip.find("data.pkl");
  TensorFinder(result).visit(pickle::parse(read_record(window, *data)), "");
}

[[noreturn]] void reject_unknown(const fs::path& path) {
  throw Error(ErrorKind::kCorrupt,
              "neither a checkpoint nor a model: not a zip archive of torch, not safetensors")
      .hint(path.extension() == ".bin" || path.extension() == ".pt"
                ? "the file may be truncated, or from before torch 1.6"
                : "");
}

}  // namespace

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
    switch (result.kind) {
      case Kind::kDcp:
        inspect_dcp(result);
        break;
      case Kind::kSafetensors:
        inspect_safetensors(result);
        break;
      case Kind::kTorch:
      case Kind::kTorchScript:
        inspect_torch(result);
        break;
      case Kind::kDirectory:
        break;
      case Kind::kUnknown:
        reject_unknown(path);
    }
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

std::vector<Inspection> inspect_all(const fs::path& path) {
  if (kind_of(path) != Kind::kDirectory) return {inspect(path)};
  std::vector<Inspection> found;
  for (const fs::path& directory : find_dcp_directories(path)) found.push_back(inspect(directory));
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const fs::path extension = entry.path().extension();
    const bool model = extension == ".safetensors" || extension == ".bin" || extension == ".pt";
    if (entry.is_regular_file() && model) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) found.push_back(inspect(file));
  if (!found.empty()) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() != ".distcp") continue;
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has .distcp files but no .metadata", path.string()))
        .hint("the save did not finish; use an earlier checkpoint");
  }
  throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no checkpoint and no model", path.string()));
}

}  // namespace accel::ckpt
