#include "ckpt/torchscript/modules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "ckpt/pickle/document.hpp"
#include "ckpt/pickle/reader.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kSourceLimitBytes = std::uint64_t{256} << 20;
constexpr std::size_t kDepthLimit = 200;
// A module is visited under each of its names, so a few modules that contain each other would never end.
constexpr std::size_t kVisitLimit = 10'000'000;
// The description of a tensor is small, whatever else the pickle contains.
constexpr pickle::Limits kTensorLimits{
    .depth = 20, .values = 10'000, .tree_bytes_per_byte = 0, .tree_bytes_at_least = std::size_t{1} << 20};

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::optional<pickle::NodeRef::GlobalName> class_of(pickle::NodeRef value) {
  const auto call = value.call();
  return call ? call->callable().global() : std::nullopt;
}

std::optional<pickle::NodePairs> attributes_of(pickle::NodeRef object) {
  const auto call = object.call();
  if (const auto record = call->record()) return record;
  const pickle::NodeList states = call->states();
  return states.size() == 1 ? states[0].mapping() : std::nullopt;
}

class Reader {
 public:
  explicit Reader(const TorchFile& archive)
      : archive_(archive), bytes_(archive.read_pickle_bytes()), document_(bytes_) {}

  ScriptModules read() {
    if (class_at(document_.root()) == nullptr)
      throw Error(ErrorKind::kCorrupt, "its data.pkl does not hold a module");
    module_at(document_.root());
    return std::move(model_);
  }

 private:
  // The class of a module object, or nullptr if it is something else.
  const ScriptClass* class_at(pickle::NodeRef value) {
    const auto name = class_of(value);
    // Objects of C++ classes, such as packed weights, have no code.
    if (!name || !is_within(name->module, "__torch__") || is_within(name->module, "__torch__.torch.classes"))
      return nullptr;
    const auto& classes = classes_of(std::string(name->module));
    const auto found = classes.find(std::string(name->name));
    if (found == classes.end())
      throw Error(ErrorKind::kCorrupt, fmt::format("its code has no class {}.{}", name->module, name->name));
    return found->second.is_module ? &found->second : nullptr;
  }

  static bool is_within(std::string_view module, std::string_view package) {
    return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
  }

  const std::map<std::string, ScriptClass>& classes_of(const std::string& module) {
    const auto known = model_.code.find(module);
    if (known != model_.code.end()) return known->second;
    std::string path = module;
    std::replace(path.begin(), path.end(), '.', '/');
    const std::string record = fmt::format("code/{}.py", path);
    const ZipEntry* entry = archive_.zip().find(record);
    if (entry == nullptr) throw Error(ErrorKind::kCorrupt, fmt::format("it has no record '{}'", record));
    const std::string text = read_text_record(archive_.window(), *entry, kSourceLimitBytes);
    return model_.code.emplace(module, parse_script_classes(text)).first->second;
  }

  std::size_t module_at(pickle::NodeRef object) {
    const auto [known, is_new] = modules_.try_emplace(object.id().index(), model_.modules.size());
    if (!is_new) return known->second;
    if (path_.size() > kDepthLimit)
      throw Error(ErrorKind::kCorrupt, "modules nest too deep, or contain themselves");
    const std::size_t index = known->second;
    const auto name = class_of(object);
    model_.modules.push_back({fmt::format("{}.{}", name->module, name->name), class_at(object), {}});
    const auto attributes = attributes_of(object);
    if (!attributes) throw Error(ErrorKind::kCorrupt, "a module without attributes");
    for (std::size_t i = 0; i < attributes->size(); ++i) {
      const auto key = attributes->key(i).text();
      if (!key) continue;
      ScriptAttribute attribute{std::string(*key)};
      path_.push_back(attribute.name);
      read_attribute(attributes->value(i), index, attribute);
      path_.pop_back();
      model_.modules[index].attributes.push_back(std::move(attribute));
    }
    return index;
  }

  void read_attribute(pickle::NodeRef value, std::size_t owner, ScriptAttribute& attribute) {
    const auto name = class_of(value);
    if (!name) return;
    if (name->module.starts_with("torch.")) {
      const ScriptModule& module = model_.modules[owner];
      const bool named = module.is_parameter(attribute) || module.is_buffer(attribute);
      // An attribute that is not part of the state may have any form.
      if (!named && name->name != "_rebuild_tensor_v2") return;
      if (const auto tensor = tensor_at(value)) {
        attribute.kind = ScriptAttribute::Kind::kTensor;
        attribute.index = *tensor;
      }
    } else if (class_at(value) != nullptr) {
      attribute.index = module_at(value);
      attribute.kind = ScriptAttribute::Kind::kModule;
    }
  }

  std::optional<std::size_t> tensor_at(pickle::NodeRef value) {
    const auto known = tensors_.find(value.id().index());
    if (known != tensors_.end()) return known->second;
    std::optional<TorchTensor> tensor;
    with_context([&] { return fmt::format("tensor '{}'", fmt::join(path_, ".")); },
                 [&] { tensor = torch_tensor_of(pickle::tree_of(value, kTensorLimits)); });
    if (!tensor) return std::nullopt;
    model_.tensors.push_back(std::move(*tensor));
    return tensors_.emplace(value.id().index(), model_.tensors.size() - 1).first->second;
  }

  const TorchFile& archive_;
  std::vector<std::byte> bytes_;
  pickle::Document document_;
  ScriptModules model_;
  std::vector<std::string> path_;
  std::unordered_map<std::uint32_t, std::size_t> modules_;  // Maps a node of the document to its module.
  std::unordered_map<std::uint32_t, std::size_t> tensors_;
};

class ModuleWalker {
 public:
  ModuleWalker(const ScriptModules& model,
               const std::function<void(const std::string&, const ScriptModule&)>& visit)
      : model_(model), visit_(visit) {}

  void walk(std::size_t index, std::size_t depth) {
    if (depth > kDepthLimit || ++visits_ > kVisitLimit)
      throw Error(ErrorKind::kCorrupt, "modules nest too deep, or contain themselves");
    const ScriptModule& module = model_.modules[index];
    visit_(path_, module);
    const std::size_t length = path_.size();
    for (const ScriptAttribute& attribute : module.attributes) {
      if (attribute.kind != ScriptAttribute::Kind::kModule) continue;
      if (length > 0) path_ += '.';
      path_ += attribute.name;
      walk(attribute.index, depth + 1);
      path_.resize(length);
    }
  }

 private:
  const ScriptModules& model_;
  const std::function<void(const std::string&, const ScriptModule&)>& visit_;
  std::string path_;
  std::size_t visits_ = 0;
};

}  // namespace

std::string_view ScriptModule::class_name() const {
  return std::string_view(type).substr(type.rfind('.') + 1);
}

const ScriptAttribute* ScriptModule::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const ScriptAttribute& other) { return other.name == attribute; });
  return found == attributes.end() ? nullptr : &*found;
}

bool ScriptModule::is_parameter(const ScriptAttribute& attribute) const {
  return contains(code->parameters, attribute.name);
}

bool ScriptModule::is_buffer(const ScriptAttribute& attribute) const {
  return !is_parameter(attribute) && (!code->buffers || contains(*code->buffers, attribute.name));
}

ScriptModules read_script_modules(const TorchFile& archive) { return Reader(archive).read(); }

void for_each_module(const ScriptModules& model,
                     const std::function<void(const std::string& path, const ScriptModule& module)>& visit) {
  ModuleWalker(model, visit).walk(0, 0);
}

}  // namespace accel::ckpt
