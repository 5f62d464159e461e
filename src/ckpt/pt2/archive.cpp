#include "ckpt/pt2/archive.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/json_text.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

/// The version of the schema that is read. A later minor version only adds.
constexpr std::int64_t kSchemaMajor = 8;
constexpr std::int64_t kStrided = 7;

/// The number in `value`, which must not be symbolic.
std::int64_t fixed_int(const json& value) {
  if (value.is_object() && value.contains("as_int")) return pt2_integer(value.at("as_int"));
  throw_corrupt("has a tensor with a symbolic size");
}

Dims dims_of(const json& values) {
  Dims dims;
  for (const json& value : values) dims.push_back(fixed_int(value));
  return dims;
}

Pt2Tensor tensor_of(const std::string& name, const json& entry, const std::string& folder) {
  if (entry.at("use_pickle").get<bool>()) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' is an object of a Python class, which is pickled", name))
        .hint("export a model whose parameters and buffers are plain tensors");
  }
  const json& meta = entry.at("tensor_meta");
  if (pt2_integer(meta.at("layout")) != kStrided)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is not a dense tensor", name));
  Pt2Tensor tensor;
  tensor.dtype = pt2_dtype(pt2_integer(meta.at("dtype")));
  tensor.shape = dims_of(meta.at("sizes"));
  tensor.strides = dims_of(meta.at("strides"));
  tensor.storage_offset = fixed_int(meta.at("storage_offset"));
  tensor.requires_grad = meta.at("requires_grad").get<bool>();
  tensor.record = folder + entry.at("path_name").get<std::string>();
  bool sound = tensor.storage_offset >= 0 && tensor.shape.size() == tensor.strides.size();
  for (const Dims& dims : {tensor.shape, tensor.strides}) {
    for (const std::int64_t dim : dims) sound = sound && dim >= 0;
  }
  if (!sound) throw_corrupt(fmt::format("'{}' has a size, a stride or an offset that cannot be", name));
  return tensor;
}

/// The elements of a storage that the tensor reaches.
std::uint64_t end_of(const Pt2Tensor& tensor) {
  auto end = static_cast<std::uint64_t>(tensor.storage_offset);
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return 0;
    end = checked_add(end, checked_mul(static_cast<std::uint64_t>(tensor.shape[d] - 1),
                                       static_cast<std::uint64_t>(tensor.strides[d])));
  }
  return checked_add(end, std::uint64_t{1});
}

}  // namespace

std::int64_t pt2_integer(const json& value) {
  if (!value.is_number_integer()) throw_corrupt("has something else where an integer belongs");
  return value.get<std::int64_t>();
}

DType pt2_dtype(std::int64_t number) {
  if (const std::optional<DType> dtype = dtype_of_export_number(number)) return *dtype;
  throw Error(ErrorKind::kFailure,
              fmt::format("dtype {} of the schema of torch.export is not known", number));
}

Pt2Archive::Pt2Archive(const std::filesystem::path& path)
    : file_(File::open_read(path)), window_(file_, 0, file_.size()), zip_(window_) {
  try {
    if (text_of("archive_format") != "pt2") throw_corrupt("is not an archive of torch.export");
    if (zip_.find("byteorder") != nullptr && text_of("byteorder") != "little")
      throw Error(ErrorKind::kFailure, "is of a machine with another byte order, which accel does not read");
    const std::string name = program_name();
    read_program(name);
    weights_ = read_tensors("data/weights/", name + "_weights_config.json");
    constants_ = read_tensors("data/constants/", name + "_constants_config.json");
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}': {}", path.string(), error.what()));
  } catch (Error& error) {
    error.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

std::string Pt2Archive::text_of(const std::string& record) const {
  const ZipEntry* entry = zip_.find(record);
  if (entry == nullptr) throw_corrupt(fmt::format("has no record '{}'", record));
  return read_text_record(window_, *entry);
}

json Pt2Archive::json_of(const std::string& record) const {
  try {
    return parse_json(text_of(record));
  } catch (const json::exception& error) {
    throw_corrupt(fmt::format("record '{}': {}", record, error.what()));
  }
}

/// torch.export.save calls the program `model`; package_pt2() gives it any name, and packs several into one
/// archive.
std::string Pt2Archive::program_name() const {
  constexpr std::string_view kFolder = "models/";
  constexpr std::string_view kExtension = ".json";
  std::vector<std::string> names;
  for (const ZipEntry& entry : zip_.entries()) {
    std::string_view name = entry.name;
    name.remove_prefix(zip_.root().empty() ? 0 : zip_.root().size() + 1);
    if (!name.starts_with(kFolder) || !name.ends_with(kExtension)) continue;
    name.remove_prefix(kFolder.size());
    names.emplace_back(name.substr(0, name.size() - kExtension.size()));
  }
  if (names.size() == 1) return names.front();
  if (names.empty()) {
    throw Error(ErrorKind::kFailure, "holds no program of torch.export")
        .hint("a package of AOTInductor has compiled code alone; save the program with torch.export.save");
  }
  std::sort(names.begin(), names.end());
  throw Error(ErrorKind::kFailure, fmt::format("holds {} programs, '{}', and accel reads files with one",
                                               names.size(), fmt::join(names, "', '")))
      .hint("save each program into a file of its own with torch.export.save");
}

void Pt2Archive::read_program(const std::string& name) {
  program_ = json_of("models/" + name + ".json");
  const auto major = pt2_integer(program_.at("schema_version").at("major"));
  const auto minor = pt2_integer(program_.at("schema_version").at("minor"));
  if (major == kSchemaMajor) return;
  throw Error(ErrorKind::kFailure, fmt::format("has version {}.{} of the schema of torch.export, and accel "
                                               "reads {}.x, which torch 2.11 to 2.15 write",
                                               major, minor, kSchemaMajor))
      .hint("export the model with one of these versions of torch");
}

std::map<std::string, Pt2Tensor> Pt2Archive::read_tensors(const std::string& folder,
                                                          const std::string& config) {
  std::map<std::string, Pt2Tensor> tensors;
  const json document = json_of(folder + config);
  for (const auto& [name, entry] : document.at("config").items()) {
    Pt2Tensor tensor = tensor_of(name, entry, folder);
    const ZipEntry* record = zip_.find(tensor.record);
    if (record == nullptr) throw_corrupt(fmt::format("has no record '{}' for '{}'", tensor.record, name));
    const std::uint64_t needed = checked_mul(end_of(tensor), item_bytes(tensor.dtype));
    // An export from the meta device has one empty record for all.
    if (record->size != 0 && record->size < needed) {
      throw_corrupt(fmt::format("'{}' needs {} bytes of '{}', which has {}", name, needed, tensor.record,
                                record->size));
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

const Pt2Tensor& Pt2Archive::tensor(const std::string& name) const {
  if (const auto found = weights_.find(name); found != weights_.end()) return found->second;
  if (const auto found = constants_.find(name); found != constants_.end()) return found->second;
  throw_corrupt(fmt::format("has no values for '{}'", name));
}

std::uint64_t Pt2Archive::record_bytes(const Pt2Tensor& tensor) const {
  return zip_.find(tensor.record)->size;
}

std::uint64_t Pt2Archive::record_offset(const Pt2Tensor& tensor) const {
  return data_offset_of(window_, *zip_.find(tensor.record));
}

void Pt2Archive::check_crc(const Pt2Tensor& tensor) const {
  ckpt::check_crc(window_, *zip_.find(tensor.record));
}

Pt2Archive::Range Pt2Archive::checked_range(const std::string& name) const {
  const ZipEntry* entry = zip_.find(name);
  if (entry == nullptr) throw_corrupt(fmt::format("has no record '{}'", name));
  ckpt::check_crc(window_, *entry);
  return {data_offset_of(window_, *entry), entry->size};
}

std::string Pt2Archive::extra_file(std::string_view name) const {
  const std::string record = fmt::format("extra/{}", name);
  return zip_.find(record) == nullptr ? "" : text_of(record);
}

}  // namespace accel::ckpt
