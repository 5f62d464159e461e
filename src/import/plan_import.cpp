#include "import/plan_import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/layout.hpp"
#include "import/graph.hpp"
#include "import/methods.hpp"
#include "import/module_tree.hpp"
#include "import/statements.hpp"
#include "structure/compiled_layers.hpp"

namespace accel {
namespace {

using ckpt::Pt2Tensor;
using ckpt::pickle::Global;
using ckpt::pickle::Tuple;
using ckpt::pickle::Value;
using nlohmann::json;

/// torch's class for `with torch.no_grad()`, as it writes it into archives.
constexpr const char* kNoGrad = R"(class no_grad:
  prev : bool
  def __enter__(self: __torch__.torch.autograd.grad_mode.no_grad) -> NoneType:
    self.prev = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    return None
  def __exit__(self: __torch__.torch.autograd.grad_mode.no_grad,
    exc_type: Any,
    exc_value: Any,
    traceback: Any) -> NoneType:
    prev = self.prev
    torch.set_grad_enabled(prev)
    return None
  def __init__(self: __torch__.torch.autograd.grad_mode.no_grad) -> NoneType:
    self.prev = False
    return None
)";

/// torch's class for `with torch.autocast(...)`. Its methods do nothing: TorchScript has a pass that reads
/// the attributes, and accel's worker sets autocast by them.
constexpr const char* kAutocast = R"(class autocast:
  fast_dtype : int
  _enabled : bool
  device : str
  def __enter__(self: __torch__.torch.amp.autocast_mode.autocast) -> __torch__.torch.amp.autocast_mode.autocast:
    return self
  def __exit__(self: __torch__.torch.amp.autocast_mode.autocast,
    exc_type: Any,
    exc_val: Any,
    exc_tb: Any) -> NoneType:
    return None
  def __init__(self: __torch__.torch.amp.autocast_mode.autocast,
    device_type: str,
    dtype: int,
    enabled: bool) -> NoneType:
    self.fast_dtype = dtype
    self._enabled = enabled
    self.device = device_type
    return None
)";

std::string annotation(const std::string& name, const std::string& type) {
  return is_identifier(name) ? fmt::format("  {} : {}\n", name, type)
                             : fmt::format("  __annotations__[{}] = {}\n", literal_of(name), type);
}

std::string list_of_names(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) text += literal_of(name) + ", ";
  return text + "]";
}

/// What the exporter wrote about the model.
json given_notes(const ckpt::Pt2Archive& archive) {
  const std::string text = archive.extra_file("accel.json");
  try {
    json notes = text.empty() ? json::object() : parse_json(text);
    if (!notes.is_object()) throw_corrupt("it is not an object");
    [[maybe_unused]] const auto ties = notes.value("ties", std::vector<std::vector<std::string>>{});
    return notes;
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("the extra file accel.json is malformed: {}", without_json_tag(error.what())));
  } catch (Error& error) {
    error.add_context("the extra file accel.json");
    throw;
  }
}

class Importer {
 public:
  Importer(std::string name, const ckpt::Pt2Archive& archive, ImportedValues values)
      : name_(std::move(name)),
        archive_(archive),
        values_(values),
        given_(given_notes(archive)),
        graph_(read_graph(archive)),
        tree_(graph_, archive, ties()) {}

  ImportPlan plan() {
    ImportPlan plan;
    plan.random_operators = write_methods(graph_, archive_.program(), tree_);
    plan.inputs = graph_.inputs;
    plan.signature = signature_of(archive_.program(), graph_);
    add_object(0);
    add_text("data.pkl", pickle_.finish());
    for (std::size_t i = 0; i < tree_.modules().size(); ++i)
      add_text(fmt::format("code/__torch__/___torch_mangle_{}.py", i), class_of(i));
    add_text("code/__torch__/torch/autograd/grad_mode.py", kNoGrad);
    add_text("code/__torch__/torch/amp/autocast_mode.py", kAutocast);
    add_text("constants.pkl", ckpt::pickle::write(Tuple{}));
    // torch gives the operators of a file the meaning that they had in the version that the file names.
    add_text("version", "10\n");
    add_text("byteorder", "little");
    add_text("extra/accel.json", notes().dump());
    add_compiled_code();
    for (std::size_t i = 0; i < storages_.size(); ++i) add_storage(i);
    plan.has_values = has_values_;
    plan.file.name = name_;
    plan.modules = tree_.modules().size();
    plan.operators = graph_.nodes.size();
    plan.tensors = graph_.parameters.size() + graph_.buffers.size() + graph_.constants.size();
    append_archive(plan.file, 0, ckpt::ZipLayout(std::move(records_)), std::move(contents_));
    return plan;
  }

 private:
  void add_text(const std::string& record, std::string text) {
    records_.push_back({.name = root() + record, .size = text.size()});
    contents_.emplace_back(std::move(text));
  }

  /// The code of layers goes into the file as it is. Nothing runs it here.
  void add_compiled_code() {
    const std::string text = archive_.extra_file(kCompiledNotes);
    if (text.empty()) return;
    add_text(fmt::format("extra/{}", kCompiledNotes), text);
    const std::size_t packages = parse_compiled_layers(text).packages.size();
    for (std::size_t i = 0; i < packages; ++i) {
      for (const bool is_backward : {false, true}) {
        const std::string name = record_of_code(i, is_backward);
        const ckpt::Pt2Archive::Range range = archive_.checked_range(name);
        records_.push_back({.name = root() + name, .size = range.bytes});
        contents_.emplace_back(ckpt::FileContent{archive_.path(), range.offset});
      }
    }
  }

  void add_storage(std::size_t storage) {
    const std::string name = fmt::format("data/{}", storage);
    if (storages_[storage] == nullptr) return add_text(name, "");
    const Pt2Tensor& tensor = *storages_[storage];
    archive_.check_crc(tensor);
    records_.push_back({.name = root() + name, .size = archive_.record_bytes(tensor)});
    contents_.emplace_back(ckpt::FileContent{archive_.path(), archive_.record_offset(tensor)});
  }

  [[nodiscard]] std::string root() const { return std::filesystem::path(name_).stem().string() + "/"; }

  /// Pickles the module's object.
  void add_object(std::size_t place) {
    const ImportedModule& module = tree_.at(place);
    const std::string type = tree_.type_of(place);
    const std::size_t dot = type.rfind('.');
    pickle_.begin_instance(Global(type.substr(0, dot), type.substr(dot + 1)));
    pickle_.begin_dict();
    for (const auto* names : {&module.parameters, &module.buffers, &module.constants}) {
      const bool are_parameters = names == &module.parameters;
      for (const std::string& name : *names) {
        const std::string path = module.path.empty() ? name : module.path + "." + name;
        pickle_.put(name);
        // Tied tensors are one object.
        pickle_.put_shared(tree_.names_of(path).front(), pickled(path, are_parameters));
      }
    }
    pickle_.put("training");
    pickle_.put(true);
    for (const auto& [name, child] : module.children) {
      pickle_.put(name);
      add_object(child);
    }
    pickle_.end_dict();
    pickle_.end_instance();
  }

  Value pickled(const std::string& name, bool is_parameter) {
    const Pt2Tensor& tensor = archive_.tensor(name);
    const ckpt::DTypeInfo& info = ckpt::info_of(tensor.dtype);
    if (info.torch_storage.empty())
      throw Error(ErrorKind::kFailure,
                  fmt::format("'{}' is {}, which TorchScript files do not hold", name, info.torch_name));
    const std::uint64_t bytes = archive_.record_bytes(tensor);
    const bool is_empty = bytes == 0 && checked_numel(tensor.shape) > 0;
    if (is_empty && !is_parameter) {
      throw Error(
          ErrorKind::kFailure,
          fmt::format("buffer '{}' has no values, as the model was exported from the meta device", name))
          .hint("export the model with its buffers on the CPU; only parameters may lack values");
    }
    if (is_empty) {
      has_values_ = false;
      if (!given_.contains("ties")) {
        throw Error(
            ErrorKind::kFailure,
            fmt::format("'{}' has no values, and the file does not say which parameters are tied", name))
            .hint(
                "export the model with its weights, or with accel-export, which writes the names of tied "
                "parameters into the file");
      }
    }
    if (is_parameter && (is_empty || values_ == ImportedValues::kBuffers)) {
      const auto [storage, fresh] = by_tie_.emplace(tree_.names_of(name).front(), storages_.size());
      if (fresh) storages_.push_back(nullptr);
      return ckpt::pickle_of_tensor({.dtype = tensor.dtype,
                                     .shape = tensor.shape,
                                     .strides = ckpt::row_major_strides(tensor.shape),
                                     .storage_key = std::to_string(storage->second),
                                     .storage_bytes = checked_nbytes(tensor.shape, info.item_bytes),
                                     .requires_grad = tensor.requires_grad,
                                     .on_meta = true});
    }
    const auto [storage, fresh] = by_record_.emplace(tensor.record, storages_.size());
    if (fresh) storages_.push_back(&tensor);
    return ckpt::pickle_of_tensor({.dtype = tensor.dtype,
                                   .shape = tensor.shape,
                                   .strides = tensor.strides,
                                   .storage_offset = tensor.storage_offset,
                                   .storage_key = std::to_string(storage->second),
                                   .storage_bytes = bytes,
                                   .requires_grad = tensor.requires_grad});
  }

  [[nodiscard]] std::string class_of(std::size_t place) const {
    const ImportedModule& module = tree_.at(place);
    std::string text =
        fmt::format("class {}(Module):\n  __parameters__ = {}\n  __buffers__ = {}\n", module.class_name,
                    list_of_names(module.parameters), list_of_names(module.buffers));
    for (const auto* names : {&module.parameters, &module.buffers, &module.constants}) {
      for (const std::string& name : *names) text += annotation(name, "Tensor");
    }
    text += "  training : bool\n";
    for (const auto& [name, child] : module.children) text += annotation(name, tree_.type_of(child));
    for (const std::string& method : module.methods) text += method;
    return text;
  }

  /// The file accel.json: what the exporter said, and what the graph shows.
  [[nodiscard]] json notes() const {
    json notes = given_;
    notes["source"] = "torch.export";
    notes["non_persistent"] = graph_.non_persistent;
    notes["inputs"] = graph_.inputs;
    if (notes.contains("layer_classes")) return notes;
    std::set<std::string> layers;
    for (const ImportedModule& module : tree_.modules()) {
      // The members of a list that are called themselves, as the layers of a transformer are.
      if (graph_.classes.contains(module.path)) continue;
      for (const auto& [name, child] : module.children) {
        const bool is_number = std::all_of(name.begin(), name.end(), [](char c) {
          return std::isdigit(static_cast<unsigned char>(c)) != 0;
        });
        if (is_number && !tree_.at(child).children.empty() && graph_.classes.contains(tree_.at(child).path))
          layers.insert(tree_.at(child).class_name);
      }
    }
    notes["layer_classes"] = layers;
    return notes;
  }

  /// The names of tied parameters, which the exporter tells if the archive has no values.
  [[nodiscard]] std::vector<std::vector<std::string>> ties() const {
    return given_.value("ties", std::vector<std::vector<std::string>>{});
  }

  std::string name_;
  const ckpt::Pt2Archive& archive_;
  ImportedValues values_;
  json given_;  ///< The exporter's notes.
  ExportedGraph graph_;
  ModuleTree tree_;
  ckpt::pickle::Writer pickle_;
  /// A tensor of each storage; null for a storage without values.
  std::vector<const Pt2Tensor*> storages_;
  bool has_values_ = true;
  std::map<std::string, std::size_t> by_record_;
  std::map<std::string, std::size_t>
      by_tie_;  ///< Storages without values, by the first name of the parameter.
  std::vector<ckpt::ZipRecord> records_;
  std::vector<ckpt::OutputContent> contents_;
};

}  // namespace

ImportPlan plan_import(std::string name, const ckpt::Pt2Archive& archive, ImportedValues values) {
  try {
    return Importer(std::move(name), archive, values).plan();
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}': the program is not as torch.export writes it: {}",
                                                 archive.path().string(), without_json_tag(error.what())));
  } catch (Error& error) {
    error.add_context(fmt::format("'{}'", archive.path().string()));
    throw;
  }
}

}  // namespace accel
