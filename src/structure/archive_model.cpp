#include "structure/archive_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/byte_source.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torchscript/reads.hpp"
#include "structure/compiled_layers.hpp"
#include "structure/quantized.hpp"

namespace accel {
namespace {

using ckpt::ScriptAttribute;
using ckpt::ScriptModule;
using ckpt::ScriptModules;

constexpr std::uint64_t kNotesLimitBytes = std::uint64_t{64} << 20;

std::string text_of(const ckpt::TorchFile& archive, std::string_view record) {
  const ckpt::ZipEntry* entry = archive.zip().find(record);
  return entry == nullptr ? "" : ckpt::read_text_record(archive.window(), *entry, kNotesLimitBytes);
}

/// The bytes of a file in memory.
class MemorySource final : public ckpt::ByteSource {
 public:
  MemorySource(std::vector<std::byte> bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {}

  [[nodiscard]] std::uint64_t size() override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) throw_corrupt("the file ends early");
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }
  [[nodiscard]] std::string name() const override { return name_; }

 private:
  std::vector<std::byte> bytes_;
  std::string name_;
};

[[noreturn]] void refuse_file(const std::filesystem::path& path, const Error& error) {
  const std::string extension = path.extension().string();
  const bool is_of_weights = (extension == ".safetensors" || extension == ".bin") &&
                             std::filesystem::is_regular_file(path) &&
                             (error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUsage);
  if (std::filesystem::is_directory(path) || is_of_weights) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' holds weights, and not the code of a model", path.string()))
        .hint(
            "`accel-export MODEL_DIRECTORY model.pt2` makes a model file of a model of transformers; weights "
            "are named by training.model.weights");
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is not a model file that accel can read: {}", path.string(), error.message()))
      .hint("a model file is made by torch.export.save, torch.jit.script or torch.jit.trace");
}

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// Finds the tensors that are read across units in the code of the modules' methods.
class CrossUnitFinder {
 public:
  CrossUnitFinder(const ScriptModules& archive, const std::unordered_set<std::string>& units)
      : archive_(archive) {
    ckpt::for_each_module(archive, [&](const std::string& path, const ScriptModule& module) {
      if (units.contains(path)) units_.insert(&module);
    });
  }

  std::set<std::size_t> find() {
    // Once for each module object, because all its names reach the same tensors.
    for (const ScriptModule& module : archive_.modules) {
      for (const ckpt::AttributePath& path : reads_of(*module.code)) follow(module, path);
    }
    return std::move(found_);
  }

 private:
  const std::vector<ckpt::AttributePath>& reads_of(const ckpt::ScriptClass& code) {
    const auto [entry, is_new] = reads_.try_emplace(&code);
    if (is_new) {
      for (const ckpt::ScriptMethod& method : code.methods) {
        for (ckpt::AttributePath& path : ckpt::attribute_reads(method.source)) {
          // A path through a unit has at least the unit and the attribute that is read.
          if (path.size() > 1) entry->second.push_back(std::move(path));
        }
      }
    }
    return entry->second;
  }

  void follow(const ScriptModule& start, const ckpt::AttributePath& path) {
    const ScriptModule* module = &start;
    bool through_unit = false;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const ScriptAttribute* attribute = module->find(path[i]);
      if (attribute == nullptr || attribute->kind == ScriptAttribute::Kind::kOther) return;
      const auto declared = module->code->types.find(path[i]);
      const std::string_view type =
          declared == module->code->types.end() ? std::string_view() : std::string_view(declared->second);
      const bool last = i + 1 == path.size();
      if (attribute->kind == ScriptAttribute::Kind::kTensor) {
        if (last && through_unit) found_.insert(attribute->index);
        return;
      }
      module = &archive_.modules[attribute->index];
      if (!type.empty() && type != module->type) return;  // The type is an interface, which has only methods.
      if (last && through_unit) add_parameters(attribute->index);
      through_unit |= units_.contains(module);
    }
  }

  /// Units gather their own parameters when they are called, whoever calls them.
  void add_parameters(std::size_t index) {
    const ScriptModule& module = archive_.modules[index];
    if (units_.contains(&module) || !added_.insert(index).second) return;
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind == ScriptAttribute::Kind::kModule) add_parameters(attribute.index);
      if (attribute.kind == ScriptAttribute::Kind::kTensor && module.is_parameter(attribute))
        found_.insert(attribute.index);
    }
  }

  const ScriptModules& archive_;
  std::set<const ScriptModule*> units_;
  std::map<const ckpt::ScriptClass*, std::vector<ckpt::AttributePath>> reads_;
  std::set<std::size_t> added_;
  std::set<std::size_t> found_;
};

/// Checks all attributes, parameters and buffers or not.
void refuse_quantized_attributes(const ScriptModules& archive, const std::string& path,
                                 const ScriptModule& module) {
  for (const ScriptAttribute& attribute : module.attributes) {
    const auto declared = module.code->types.find(attribute.name);
    const bool packed = declared != module.code->types.end() && is_packed_type(declared->second);
    const bool quantized = attribute.kind == ScriptAttribute::Kind::kTensor &&
                           archive.tensors[attribute.index].obstacle == ckpt::kQuantized;
    if (packed || quantized) refuse_quantized(join(path, attribute.name));
  }
}

void check_parameter(const ckpt::TorchTensor& tensor, const std::string& fqn) {
  if (tensor.obstacle.empty() || tensor.on_meta) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("parameter '{}' is {}, which cannot be sharded", fqn, tensor.obstacle));
}

}  // namespace

ArchiveModel ArchiveModel::open(const std::filesystem::path& path) {
  try {
    const File file = File::open_read(path);
    return read(ckpt::FileWindow(file, 0, file.size()));
  } catch (const Error& error) {
    refuse_file(path, error);
  }
}

ArchiveModel ArchiveModel::from_bytes(std::vector<std::byte> file, const std::filesystem::path& path) {
  try {
    MemorySource source(std::move(file), path.string());
    return read(ckpt::FileWindow(source));
  } catch (const Error& error) {
    refuse_file(path, error);
  }
}

ArchiveModel ArchiveModel::read(const ckpt::FileWindow& window) {
  const ckpt::TorchFile archive(window);
  ArchiveModel model;
  model.archive_ = ckpt::read_script_modules(archive);
  model.accel_json_ = text_of(archive, "extra/accel.json");
  model.compiled_json_ = text_of(archive, fmt::format("extra/{}", kCompiledNotes));
  return model;
}

ModelStructure ArchiveModel::structure(const std::unordered_set<std::string>& units) const {
  ModelStructure result;
  std::unordered_map<std::size_t, std::size_t> parameter_of;  // Maps a tensor to its parameter in `result`.
  ckpt::for_each_module(archive_, [&](const std::string& path, const ScriptModule& module) {
    refuse_quantized_attributes(archive_, path, module);
    result.modules.push_back({path, std::string(module.class_name())});
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind != ScriptAttribute::Kind::kTensor || !module.is_parameter(attribute)) continue;
      std::string fqn = join(path, attribute.name);
      const auto [entry, is_new] = parameter_of.try_emplace(attribute.index, result.parameters.size());
      if (!is_new) {
        result.parameters[entry->second].fqns.push_back(std::move(fqn));
        continue;
      }
      const ckpt::TorchTensor& tensor = archive_.tensors[attribute.index];
      check_parameter(tensor, fqn);
      result.parameters.push_back({{std::move(fqn)},
                                   tensor.shape,
                                   std::string(ckpt::torch_name(tensor.dtype)),
                                   tensor.requires_grad,
                                   /*cross_unit=*/false});
    }
  });
  if (units.empty()) return result;
  for (const std::size_t tensor : CrossUnitFinder(archive_, units).find()) {
    const auto parameter = parameter_of.find(tensor);
    if (parameter != parameter_of.end()) result.parameters[parameter->second].cross_unit = true;
  }
  return result;
}

std::uint64_t ArchiveModel::replicated_bytes() const {
  std::set<std::size_t> parameters;
  for (const ScriptModule& module : archive_.modules) {
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind == ScriptAttribute::Kind::kTensor && module.is_parameter(attribute))
        parameters.insert(attribute.index);
    }
  }
  std::map<std::string_view, std::uint64_t> storages;
  for (std::size_t i = 0; i < archive_.tensors.size(); ++i) {
    const ckpt::TorchTensor& tensor = archive_.tensors[i];
    if (parameters.contains(i)) continue;
    std::uint64_t& bytes = storages[tensor.storage_key];
    bytes = std::max(bytes, tensor.storage_bytes);
  }
  std::uint64_t total = 0;
  for (const auto& [key, bytes] : storages) total = checked_add(total, bytes);
  return total;
}

bool ArchiveModel::has_values() const {
  for (const ScriptModule& module : archive_.modules) {
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind == ScriptAttribute::Kind::kTensor && module.is_parameter(attribute) &&
          archive_.tensors[attribute.index].on_meta)
        return false;
    }
  }
  return true;
}

std::string_view ArchiveModel::forward_source() const {
  for (const ckpt::ScriptMethod& method : archive_.modules.front().code->methods) {
    if (method.name == "forward") return method.source;
  }
  return {};
}

std::vector<ckpt::ScriptArgument> ArchiveModel::forward_arguments() const {
  return ckpt::arguments_of(forward_source());
}

std::string ArchiveModel::forward_result() const { return ckpt::returned_type(forward_source()); }

std::uint64_t ArchiveModel::persistent_bytes(const std::vector<std::string>& non_persistent) const {
  std::uint64_t total = 0;
  ckpt::for_each_module(archive_, [&](const std::string& path, const ScriptModule& module) {
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind != ScriptAttribute::Kind::kTensor || !module.is_buffer(attribute)) continue;
      const std::string fqn = join(path, attribute.name);
      if (std::find(non_persistent.begin(), non_persistent.end(), fqn) != non_persistent.end()) continue;
      const ckpt::TorchTensor& tensor = archive_.tensors[attribute.index];
      total = checked_add(total, checked_nbytes(tensor.shape, ckpt::item_bytes(tensor.dtype)));
    }
  });
  return total;
}

}  // namespace accel
