#include "ckpt/read/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "base/interrupt.hpp"
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

// A pickle that cannot be read does not hide the rest of the checkpoint.
std::string value_of(Checkpoint& checkpoint, std::size_t object) {
  check_interrupted();
  try {
    return pickle::describe(checkpoint.read_object(object));
  } catch (const Error& e) {
    return fmt::format("unreadable: {}", e.message());
  }
}

// Nothing for a tensor that accel does not read, such as a sparse one: it is listed all the same.
std::optional<TensorFiles> files_if_possible(Checkpoint& checkpoint, std::size_t tensor) {
  try {
    return checkpoint.files_of(tensor);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kFailure) throw;
    return std::nullopt;
  }
}

// Tells weights, optimizer and other state apart.
class Parts {
 public:
  explicit Parts(const Layout& layout) : layout_(layout) {}

  [[nodiscard]] Part part_of(const StatePath& path, const std::string& name) const {
    const auto is_above = [&](const StatePath& start) {
      return path.size() >= start.size() && std::equal(start.begin(), start.end(), path.begin());
    };
    const bool is_optimizer = layout_.is_optimizer || layout_.by_name.contains(name) ||
                              std::any_of(layout_.optimizers.begin(), layout_.optimizers.end(), is_above);
    if (is_optimizer) return Part::kOptimizer;
    // Several sets of weights are all shown.
    return layout_.candidates.empty() && !layout_.below(path) ? Part::kOther : Part::kWeights;
  }

  [[nodiscard]] std::string weight_name(const StatePath& path) const {
    const auto below = layout_.candidates.empty() ? layout_.below(path) : std::nullopt;
    return fqn_of(below.value_or(path));
  }

 private:
  const Layout& layout_;
};

void note_layout(Inspection& result, const Checkpoint& checkpoint, const Layout& layout) {
  if (!layout.root.empty()) result.roots = {fqn_of(layout.root)};
  if (layout.candidates.empty()) {
    result.beside = left_out_parts(checkpoint, layout, Objects::kTaken);
    return;
  }
  result.roots.clear();
  for (const StatePath& path : layout.candidates) result.roots.push_back(fqn_of(path));
}

void inspect_contents(Inspection& result) {
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(result.path);
  const bool one_file = has_one_file(result.kind);
  const Layout layout = layout_of(*checkpoint);
  const Parts parts(layout);
  std::set<std::string> files;
  for (std::size_t i = 0; i < checkpoint->tensors().size(); ++i) {
    check_interrupted();
    const TensorEntry& entry = checkpoint->tensors()[i];
    const bool unknown = entry.dtype == DType::kUnknown;
    const std::uint64_t bytes = unknown ? 0 : checked_nbytes(entry.shape, item_bytes(entry.dtype));
    InspectedTensor tensor{entry.name,   entry.dtype, entry.shape, bytes,
                           entry.pieces, 0,           {},          parts.part_of(entry.path, entry.name)};
    if (tensor.part == Part::kWeights) tensor.weight = parts.weight_name(entry.path);
    if (std::optional<TensorFiles> own = one_file ? std::nullopt : files_if_possible(*checkpoint, i)) {
      tensor.copies = entry.copies;
      files.insert(own->pieces.begin(), own->pieces.end());
      files.insert(own->copies.begin(), own->copies.end());
      tensor.files = std::move(own->pieces);
    }
    result.tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < checkpoint->objects().size(); ++i) {
    const ObjectEntry& entry = checkpoint->objects()[i];
    result.objects.push_back({entry.name, value_of(*checkpoint, i), parts.part_of(entry.path, entry.name)});
    if (std::string file = checkpoint->file_of_object(i); !file.empty()) files.insert(std::move(file));
  }
  note_layout(result, *checkpoint, layout);
  for (const std::string& file : files) result.files.push_back(file_in(checkpoint->directory(), file));
  result.metadata = checkpoint->metadata();
  if (!checkpoint->version().empty()) result.metadata["version"] = checkpoint->version();
}

void list_records(Inspection& result) {
  const File file = File::open_read(result.path);
  const FileWindow window(file, 0, file.size());
  if (!looks_like_zip(window)) return;  // A file of torch before 1.6 has no records.
  const ZipIndex zip(window);
  for (const ZipEntry& entry : zip.entries()) result.files.push_back({entry.name, entry.size, false});
}

}  // namespace

bool has_one_file(Kind kind) {
  return kind == Kind::kSafetensors || kind == Kind::kTorch || kind == Kind::kTorchScript ||
         kind == Kind::kPt2;
}

std::uint64_t Inspection::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const InspectedTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

std::vector<LayerRow> Inspection::layers() const {
  std::vector<LayerTensor> weights;
  for (const InspectedTensor& tensor : tensors) {
    if (tensor.part == Part::kWeights)
      weights.push_back({tensor.weight, tensor.dtype, tensor.shape, tensor.bytes});
  }
  return summarize_layers(std::move(weights));
}

Inspection inspect(const fs::path& path) {
  Inspection result;
  result.path = path;
  result.kind = kind_of(path);
  with_path(path, [&] {
    inspect_contents(result);
    if (result.kind == Kind::kTorch || result.kind == Kind::kTorchScript || result.kind == Kind::kPt2)
      list_records(result);
  });
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
