#include "ckpt/convert/load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/convert/script_storage.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kNamed = 10;
// Records that stay as they are become part of the plan up to this size.
constexpr std::uint64_t kSmallRecord = std::uint64_t{1} << 16;
constexpr std::uint64_t kMostInMemory = std::uint64_t{1} << 28;

// The model's archive.
struct Archive {
  explicit Archive(const std::filesystem::path& path)
      : file(File::open_read(path)), window(file, 0, file.size()), zip(window) {
    for (std::size_t i = 0; i < zip.entries().size(); ++i) {
      const ZipEntry& entry = zip.entries()[i];
      if (entry.name.starts_with(zip.root() + "/data/") && entry.size > 0) {
        storages.emplace(data_offset_of(window, entry), i);
      }
    }
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
};

std::string text_of(const Archive& archive, const ZipEntry& entry) {
  const std::vector<std::byte> data = read_record(archive.window, entry);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

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

// The views that get values, by the record of their storage.
using Storages = std::map<std::size_t, std::vector<StorageView>>;

class Matcher {
 public:
  Matcher(Checkpoint& model, const Archive& archive, const Checkpoint& source)
      : model_(model), archive_(archive), source_(source) {}

  Storages match(const OutputState& state, Missing missing, TorchScriptPlan& plan) {
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
      if (is_covered(i)) {
        plan.loaded.push_back(name);
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
  if (entry.size <= kSmallRecord || entry.method != 0) return text_of(model, entry);
  check_crc(model.window, entry);
  return FileContent{model.file.path(), data_offset_of(model.window, entry)};
}

class Contents {
 public:
  Contents(const Archive& model, Storages storages, Checkpoint& source)
      : model_(model), storages_(std::move(storages)), source_(source) {}

  OutputContent of(std::size_t record) {
    const ZipEntry& entry = model_.zip.entries()[record];
    const auto views = storages_.find(record);
    if (views == storages_.end()) return copy_of(model_, entry);
    if (std::optional<TensorContent> tensor = content_of_storage(views->second, entry.size, source_))
      return *tensor;
    in_memory_ = checked_add(in_memory_, entry.size);
    if (in_memory_ > kMostInMemory) {
      throw Error(
          ErrorKind::kFailure,
          fmt::format("'{}' is part of a storage of {}; storages that hold more than one tensor cannot be "
                      "written if they take more than {} in total",
                      views->second.front().name, format_bytes(entry.size), format_bytes(kMostInMemory)));
    }
    std::string storage = text_of(model_, entry);
    fill_storage(storage, views->second, source_);
    return storage;
  }

 private:
  const Archive& model_;
  Storages storages_;
  Checkpoint& source_;
  std::uint64_t in_memory_ = 0;
};

}  // namespace

TorchScriptPlan plan_torchscript(std::string name, Checkpoint& model, const OutputState& state,
                                 Checkpoint& source, Missing missing) {
  TorchScriptPlan plan;
  plan.file.name = std::move(name);
  const Archive archive(model.path());
  Contents contents(archive, Matcher(model, archive, source).match(state, missing, plan), source);
  std::vector<ZipRecord> records;
  std::vector<OutputContent> of_records;
  for (std::size_t i = 0; i < archive.zip.entries().size(); ++i) {
    const ZipEntry& entry = archive.zip.entries()[i];
    records.push_back({entry.name, entry.size});
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
