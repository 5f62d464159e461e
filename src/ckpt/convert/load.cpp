#include "ckpt/convert/load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/convert/script_device.hpp"
#include "ckpt/convert/script_storage.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torchscript/modules.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kNamed = 10;
// Records that stay as they are become part of the plan up to this size.
constexpr std::uint64_t kSmallRecord = std::uint64_t{1} << 16;
constexpr std::uint64_t kMostInMemory = std::uint64_t{1} << 28;

// The model's archive.
struct Archive {
  Archive(const std::filesystem::path& path, bool is_script)
      : file(File::open_read(path)), window(file, 0, file.size()), zip(window) {
    std::map<std::string_view, std::size_t> empty;
    for (std::size_t i = 0; i < zip.entries().size(); ++i) {
      const ZipEntry& entry = zip.entries()[i];
      if (!entry.name.starts_with(zip.root() + "/data/")) continue;
      if (entry.size > 0) {
        storages.emplace(data_offset_of(window, entry), i);
      } else {
        empty.emplace(std::string_view(entry.name).substr(zip.root().size() + 6), i);
      }
    }
    if (is_script && !empty.empty()) find_tensors_without_values(empty);
  }

  // Finds the tensors on the meta device. Their storages are `empty` records.
  void find_tensors_without_values(const std::map<std::string_view, std::size_t>& empty) {
    const ScriptModules model = read_script_modules(TorchFile(window));
    for_each_module(model, [&](const std::string& path, const ScriptModule& module) {
      for (const ScriptAttribute& attribute : module.attributes) {
        if (attribute.kind != ScriptAttribute::Kind::kTensor) continue;
        const TorchTensor& tensor = model.tensors[attribute.index];
        const auto record = empty.find(tensor.storage_key);
        if (!tensor.on_meta || record == empty.end()) continue;
        without_values.emplace(path.empty() ? attribute.name : path + "." + attribute.name,
                               std::pair(record->second, tensor));
        const auto [bytes, is_new] = meta_bytes.emplace(record->second, tensor.storage_bytes);
        if (!is_new && bytes->second != tensor.storage_bytes) {
          throw Error(ErrorKind::kCorrupt, fmt::format("'{}': two sizes are given for the storage '{}'",
                                                       file.path().string(), tensor.storage_key));
        }
      }
    });
  }

  // The offset and the index of the record that holds the byte at `offset` in the file.
  [[nodiscard]] std::pair<std::uint64_t, std::size_t> storage_at(std::uint64_t offset) const {
    const auto after = storages.upper_bound(offset);
    if (after == storages.begin()) throw Error(ErrorKind::kCorrupt, "it is not in any storage");
    return *std::prev(after);
  }

  File file;
  FileWindow window;
  ZipIndex zip;
  std::map<std::uint64_t, std::size_t> storages;  // Maps the offset of a record's data to its index.
  // The tensors on the meta device by name, with the index of the record of their storage, and the bytes that
  // such a storage has when it gets values.
  std::map<std::string, std::pair<std::size_t, TorchTensor>> without_values;
  std::map<std::size_t, std::uint64_t> meta_bytes;
};

// Collects what does not fit, for one message.
class Misfits {
 public:
  void add(const char* what, std::string detail) { by_kind_[what].push_back(std::move(detail)); }

  void refuse() const {
    if (by_kind_.empty()) return;
    std::vector<std::string> parts;
    for (const auto& [what, details] : by_kind_) {
      const std::size_t shown = std::min(details.size(), kNamed);
      parts.push_back(
          fmt::format("{} {}{}", what,
                      fmt::join(details.begin(), details.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      details.size() > shown ? fmt::format(" and {} more", details.size() - shown) : ""));
    }
    Error error(ErrorKind::kFailure,
                fmt::format("the checkpoint does not fit the model: {}", fmt::join(parts, "; ")));
    if (by_kind_.size() == 1 && by_kind_.contains("missing")) {
      throw std::move(error).hint("--partial keeps the model's own values for what is missing");
    }
    throw std::move(error);
  }

 private:
  std::map<std::string_view, std::vector<std::string>> by_kind_;
};

bool fits(DType from, DType to) { return from == to || can_convert(from, to); }

// A list of what is missing would name every parameter of the model, and say nothing of the reason.
void require_place_for_adapter(const OutputState& state, const Checkpoint& model, const Checkpoint& source) {
  std::vector<std::string> names;
  for (const OutputItem& item : state.tensors) names.push_back(fqn_of(item.path));
  if (!are_adapter(names)) return;
  std::set<std::string> places;
  for (const TensorEntry& tensor : model.tensors()) {
    places.insert(tensor.name);
    places.insert(adapter_file_name(tensor.name));
  }
  if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return places.contains(name); }))
    return;
  throw Error(ErrorKind::kFailure,
              fmt::format("'{}' is an adapter of PEFT, which changes layers of its base and has not their "
                          "weights, and '{}' has no parameter of an adapter, such as '{}'",
                          source.path().string(), model.path().string(), names.front()))
      .hint(
          "merge it into its base with accel merge-weights BASE MERGED --adapter ADAPTER and load MERGED; or "
          "load it with PeftModel.from_pretrained; or export the base with accel-export --peft");
}

// The views that get values, by the record of their storage.
using Storages = std::map<std::size_t, std::vector<StorageView>>;

class Matcher {
 public:
  Matcher(Checkpoint& model, const Archive& archive, const Checkpoint& source)
      : model_(model), archive_(archive), source_(source) {}

  Storages match(const OutputState& state, Missing missing, const std::vector<std::string>& non_persistent,
                 TorchScriptPlan& plan) {
    std::map<std::string, const OutputItem*> given;
    for (const OutputItem& item : state.tensors) given.emplace(fqn_of(item.path), &item);
    std::vector<std::size_t> absent;
    for (std::size_t i = 0; i < model_.tensors().size(); ++i) {
      const auto found = given.find(model_.tensors()[i].name);
      if (found == given.end()) {
        absent.push_back(i);
        continue;
      }
      if (take(i, *found->second)) plan.loaded.push_back(found->first);
      given.erase(found);
    }
    for (const std::size_t i : absent) {
      const std::string& name = model_.tensors()[i].name;
      if (std::find(non_persistent.begin(), non_persistent.end(), name) != non_persistent.end()) continue;
      if (is_covered(i)) {
        plan.loaded.push_back(name);
      } else if (missing == Missing::kKeep && archive_.without_values.contains(name)) {
        misfits_.add("without values in the model, too:", fmt::format("'{}'", name));
      } else if (missing == Missing::kKeep) {
        plan.kept.push_back(name);
      } else {
        misfits_.add("missing", fmt::format("'{}'", name));
      }
    }
    for (const auto& [name, item] : given) misfits_.add("unexpected", fmt::format("'{}'", name));
    misfits_.refuse();
    return std::move(storages_);
  }

 private:
  bool take(std::size_t tensor, const OutputItem& item) {
    const TensorEntry& entry = model_.tensors()[tensor];
    const DType from = source_.tensors().at(item.source).dtype;
    if (item.shape != entry.shape) {
      misfits_.add("other shapes:", fmt::format("'{}' is {}, the model's is {}", entry.name,
                                                to_string(item.shape), to_string(entry.shape)));
      return false;
    }
    if (!fits(from, entry.dtype)) {
      misfits_.add("other types:", fmt::format("'{}' is {}, the model's is {}", entry.name, torch_name(from),
                                               torch_name(entry.dtype)));
      return false;
    }
    if (checked_numel(entry.shape) == 0) return true;
    auto [record, view] = view_of(tensor);
    view.source = item.source;
    storages_[record].push_back(std::move(view));
    return true;
  }

  // The record and the place of a tensor of the model. The tensor must have elements.
  std::pair<std::size_t, StorageView> view_of(std::size_t tensor) {
    if (const auto found = archive_.without_values.find(model_.tensors()[tensor].name);
        found != archive_.without_values.end()) {
      const auto& [record, empty] = found->second;
      const std::uint64_t offset = checked_mul(static_cast<std::uint64_t>(empty.storage_offset),
                                               std::uint64_t{item_bytes(empty.dtype)});
      return {record, StorageView{found->first, empty.dtype, empty.shape, empty.strides, offset, 0}};
    }
    const StoredTensor stored = model_.locate(tensor);
    try {
      const Extent& extent = stored.extents.at(0);
      const auto [begin, record] = archive_.storage_at(extent.offset);
      StorageView view{stored.name, stored.dtype, stored.shape, extent.strides, extent.offset - begin, 0};
      if (view.end() > archive_.zip.entries()[record].size) {
        throw Error(ErrorKind::kCorrupt, "it reaches beyond its storage");
      }
      return {record, std::move(view)};
    } catch (Error& e) {
      e.add_context(fmt::format("'{}': tensor '{}'", model_.path().string(), stored.name));
      throw;
    }
  }

  // Whether the tensor is tied to one that the checkpoint has under another name.
  bool is_covered(std::size_t tensor) {
    if (checked_numel(model_.tensors()[tensor].shape) == 0) return false;
    const auto [record, view] = view_of(tensor);
    const auto found = storages_.find(record);
    return found != storages_.end() &&
           std::any_of(found->second.begin(), found->second.end(),
                       [&view = view](const StorageView& other) { return other.same_place(view); });
  }

  Checkpoint& model_;
  const Archive& archive_;
  const Checkpoint& source_;
  Misfits misfits_;
  Storages storages_;
};

// Unchanged bytes of the model's file. Their CRC is checked, because the output gets a new CRC, which would
// hide damage.
OutputContent copy_of(const Archive& model, const ZipEntry& entry) {
  if (entry.size <= kSmallRecord || entry.method != 0) return read_text_record(model.window, entry);
  check_crc(model.window, entry);
  return FileContent{model.file.path(), data_offset_of(model.window, entry)};
}

class Contents {
 public:
  Contents(const Archive& model, Storages storages, Checkpoint& source)
      : model_(model), storages_(std::move(storages)), source_(source) {
    for (const auto& [record, bytes] : model_.meta_bytes) {
      if (!storages_.contains(record)) continue;
      const std::string& name = model_.zip.entries()[record].name;
      filled_.insert(name.substr(name.rfind('/') + 1));
    }
    const ZipEntry* pickle = model_.zip.find("data.pkl");
    if (!filled_.empty() && pickle != nullptr)
      pickle_ = with_storages_on_cpu(read_record(model_.window, *pickle), filled_);
  }

  // The size of a record in the output.
  [[nodiscard]] std::uint64_t bytes_of(std::size_t record) const {
    const ZipEntry& entry = model_.zip.entries()[record];
    if (is_changed_pickle(entry)) return pickle_.size();
    const auto meta = model_.meta_bytes.find(record);
    return meta != model_.meta_bytes.end() && storages_.contains(record) ? meta->second : entry.size;
  }

  OutputContent of(std::size_t record) {
    const ZipEntry& entry = model_.zip.entries()[record];
    if (is_changed_pickle(entry)) return pickle_;
    const auto views = storages_.find(record);
    if (views == storages_.end()) return copy_of(model_, entry);
    const std::uint64_t bytes = bytes_of(record);
    if (std::optional<TensorContent> tensor = content_of_storage(views->second, bytes, source_))
      return *tensor;
    in_memory_ = checked_add(in_memory_, bytes);
    if (in_memory_ > kMostInMemory) {
      throw Error(
          ErrorKind::kFailure,
          fmt::format("'{}' is part of a storage of {}; storages that hold more than one tensor cannot be "
                      "written if they take more than {} in total",
                      views->second.front().name, format_bytes(bytes), format_bytes(kMostInMemory)));
    }
    std::string storage = read_text_record(model_.window, entry);
    storage.resize(bytes, '\0');  // A storage on the meta device has no bytes in the model.
    fill_storage(storage, views->second, source_);
    return storage;
  }

 private:
  [[nodiscard]] bool is_changed_pickle(const ZipEntry& entry) const {
    return !pickle_.empty() && &entry == model_.zip.find("data.pkl");
  }

  const Archive& model_;
  Storages storages_;
  Checkpoint& source_;
  std::set<std::string> filled_;  // Storages on the meta device that get values.
  std::string pickle_;            // The pickle with the devices of these, if there are any.
  std::uint64_t in_memory_ = 0;
};

}  // namespace

TorchScriptPlan plan_torchscript(std::string name, Checkpoint& model, const OutputState& state,
                                 Checkpoint& source, Missing missing,
                                 const std::vector<std::string>& non_persistent) {
  require_place_for_adapter(state, model, source);
  TorchScriptPlan plan;
  plan.file.name = std::move(name);
  const Archive archive(model.path(), model.kind() == Kind::kTorchScript);
  Contents contents(archive, Matcher(model, archive, source).match(state, missing, non_persistent, plan),
                    source);
  std::vector<ZipRecord> records;
  std::vector<OutputContent> of_records;
  for (std::size_t i = 0; i < archive.zip.entries().size(); ++i) {
    const ZipEntry& entry = archive.zip.entries()[i];
    records.push_back({entry.name, contents.bytes_of(i)});
    try {
      of_records.push_back(contents.of(i));
    } catch (Error& e) {
      if (e.kind() == ErrorKind::kCorrupt) e.add_context(fmt::format("'{}'", model.path().string()));
      throw;
    }
  }
  append_archive(plan.file, 0, ZipLayout(std::move(records)), std::move(of_records));
  return plan;
}

}  // namespace accel::ckpt
