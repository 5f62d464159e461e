#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"
#include "ckpt/listed_checkpoint.hpp"
#include "ckpt/openers.hpp"
#include "ckpt/torch_listing.hpp"
#include "ckpt/torchscript_classes.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kSourceLimitBytes = std::uint64_t{256} << 20;

// Walks the module objects of an archive in the order of state_dict(): a module's parameters, its buffers,
// then its submodules, each as the attributes come.
class ModuleWalker {
 public:
  ModuleWalker(Listing& listing, std::string file, const TorchFile& archive)
      : listing_(listing), file_(std::move(file)), archive_(archive) {}

  void visit(const pickle::Value& value) {
    const ScriptClass* type = module_class_of(value);
    if (type == nullptr) throw Error(ErrorKind::kCorrupt, "its data.pkl does not hold a module");
    visit_module(*value.get<pickle::Object>(), *type);
  }

 private:
  void visit_module(const pickle::Object& object, const ScriptClass& type) {
    const pickle::Pairs* attributes =
        object->states.size() == 1 ? pickle::mapping_of(object->states[0]) : nullptr;
    if (attributes == nullptr) throw Error(ErrorKind::kCorrupt, "a module without attributes");
    const auto is_parameter = [&](const std::string& name) { return contains(type.parameters, name); };
    add_tensors(*attributes, is_parameter);
    add_tensors(*attributes, [&](const std::string& name) {
      return !is_parameter(name) && (!type.buffers || contains(*type.buffers, name));
    });
    for (const auto& [key, value] : *attributes) {
      const auto* name = key.get<std::string>();
      const ScriptClass* below = name != nullptr ? module_class_of(value) : nullptr;
      if (below == nullptr) continue;
      prefix_.push_back(*name);
      visit_module(*value.get<pickle::Object>(), *below);
      prefix_.pop_back();
    }
  }

  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  void add_tensors(const pickle::Pairs& attributes, const std::function<bool(const std::string&)>& wanted) {
    for (const auto& [key, value] : attributes) {
      const auto* name = key.get<std::string>();
      if (name == nullptr || !wanted(*name)) continue;
      prefix_.push_back(*name);
      if (const std::optional<TorchTensor> tensor = torch_tensor_of(value)) add_tensor(*tensor);
      prefix_.pop_back();
    }
  }

  // The state dict is flat: one key, with dots.
  void add_tensor(const TorchTensor& tensor) {
    ListedTensor listed{{fqn_of(prefix_)}, tensor.dtype, tensor.shape, {}};
    listed.obstacle = tensor.obstacle;
    if (tensor.obstacle.empty()) listed.extents = extents_of(file_, archive_, tensor);
    listing_.tensors.push_back(std::move(listed));
  }

  // The class of a module object, or nullptr if it is something else.
  const ScriptClass* module_class_of(const pickle::Value& value) {
    const auto* object = value.get<pickle::Object>();
    const auto* type = object != nullptr ? (*object)->callable.get<pickle::Global>() : nullptr;
    if (type == nullptr || !type->qualified().starts_with("__torch__")) return nullptr;
    const auto& classes = classes_of(std::string(type->module()));
    const auto found = classes.find(std::string(type->name()));
    if (found == classes.end())
      throw Error(ErrorKind::kCorrupt, fmt::format("its code has no class {}", type->qualified()));
    return found->second.is_module ? &found->second : nullptr;
  }

  const std::map<std::string, ScriptClass>& classes_of(const std::string& module) {
    const auto known = sources_.find(module);
    if (known != sources_.end()) return known->second;
    std::string path = module;
    std::replace(path.begin(), path.end(), '.', '/');
    const std::string record = fmt::format("code/{}.py", path);
    const ZipEntry* entry = archive_.zip().find(record);
    if (entry == nullptr) throw Error(ErrorKind::kCorrupt, fmt::format("it has no record '{}'", record));
    const std::vector<std::byte> text = read_record(archive_.window(), *entry, kSourceLimitBytes);
    return sources_
        .emplace(module, parse_script_classes({reinterpret_cast<const char*>(text.data()), text.size()}))
        .first->second;
  }

  Listing& listing_;
  std::string file_;
  const TorchFile& archive_;
  StatePath prefix_;
  std::map<std::string, std::map<std::string, ScriptClass>> sources_;  // By module.
};

}  // namespace

std::unique_ptr<Checkpoint> open_torchscript(const std::filesystem::path& path) {
  Listing listing{Kind::kTorchScript, path, parent_of(path), {}, {}, {}};
  const File file = File::open_read(path);
  try {
    const TorchFile archive(FileWindow(file, 0, file.size()));
    ModuleWalker(listing, path.filename().string(), archive).visit(archive.read_pickle());
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
