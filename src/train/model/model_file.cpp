#include "train/model/model_file.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "ckpt/io/byte_source.hpp"
#include "ckpt/torchscript/fingerprint.hpp"
#include "ckpt/zip/index.hpp"
#include "structure/quantized.hpp"
#include "train/graph/tensors.hpp"
#include "train/model/compile_error.hpp"
#include "train/model/skipping_reader.hpp"

namespace accel::train {
namespace {

void refuse_quantized_attributes(const torch::jit::Module& root) {
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const c10::IValue value = module.value._ivalue()->getSlot(slot);
      const bool quantized =
          value.isTensor() && value.toTensor().defined() && value.toTensor().is_quantized();
      if (!quantized && !is_packed_type(type->getAttribute(slot)->annotation_str())) continue;
      const std::string& name = type->getAttributeName(slot);
      refuse_quantized(module.name.empty() ? name : module.name + "." + name);
    }
  }
}

/// Whether `value` contains an object, other than a module, that holds a tensor. Objects of C++ classes are
/// opaque and count as holding one.
bool hides_tensor(const c10::IValue& value) {
  if (value.isCustomClass()) return true;
  if (value.isObject()) {
    const auto& slots = value.toObjectRef().slots();
    return std::any_of(slots.begin(), slots.end(),
                       [](const c10::IValue& slot) { return holds_tensor(slot) || hides_tensor(slot); });
  }
  if (!holds_object(value)) return false;
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), hides_tensor);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(), hides_tensor);
  }
  return true;
}

/// Tensors get their values after the model has been loaded. What code of the file computes from them during
/// loading is therefore wrong, and tensors in objects that are not modules are not found.
void refuse_hidden_tensors(const torch::jit::Module& root) {
  for (const auto& module : root.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    if (type->findMethod("__setstate__") != nullptr) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("module '{}' of class {} has a __setstate__ of its own, which computes while the model "
                      "is loaded",
                      text_of_module(module.name), class_name_of(module.value)))
          .hint("export the model without __getstate__ and __setstate__");
    }
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const c10::IValue value = module.value._ivalue()->getSlot(slot);
      if (value.isModule() || !hides_tensor(value)) continue;
      throw Error(
          ErrorKind::kUsage,
          fmt::format("attribute '{}' of module '{}' has tensors in an object whose class is not a module",
                      type->getAttributeName(slot), text_of_module(module.name)))
          .hint("make a module of that class, or keep its tensors as buffers of the module");
    }
  }
}

/// The bytes of a model file, with zeros where an outline has holes.
class ReaderSource final : public ckpt::ByteSource {
 public:
  explicit ReaderSource(const SkippingReader& reader) : reader_(reader) {}

  [[nodiscard]] std::uint64_t size() override { return reader_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) override {
    reader_.read_file_or_zeros(offset, out);
  }
  [[nodiscard]] std::string name() const override { return "the model file"; }

 private:
  const SkippingReader& reader_;
};

/// Fills the storage of a tensor that is not a parameter, once.
void fill(const at::Tensor& tensor, const SkippingReader& reader, std::unordered_set<const void*>& done) {
  if (tensor.is_meta()) return;
  const c10::Storage& storage = tensor.storage();
  const auto offset = reader.offset_of(storage.data());
  if (!offset || !done.insert(storage.data()).second) return;
  reader.read_file(*offset, {static_cast<std::byte*>(storage.mutable_data()), storage.nbytes()});
}

/// The parameters in the order of Python's named_parameters: modules in pre-order, the parameters of a module
/// before those of its children. libtorch's recursion has another order, in which the first name of a tied
/// parameter would differ from Python's.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::jit::Module& root) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& module : root.named_modules()) {
    const std::string prefix = module.name.empty() ? "" : module.name + ".";
    for (const auto& parameter : module.value.named_parameters(/*recurse=*/false)) {
      parameters.emplace_back(prefix + parameter.name, parameter.value);
    }
  }
  return parameters;
}

}  // namespace

ModelFile::ModelFile() = default;
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

std::string class_name_of(const torch::jit::Module& module) { return module.type()->name()->name(); }

ModelFile ModelFile::open(const std::filesystem::path& path) {
  try {
    return load(std::make_shared<SkippingReader>(path));
  } catch (const torch::jit::ErrorReport& error) {
    throw compile_error(path, error);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not a model file that libtorch can open: {}",
                                               path.string(), error.what_without_backtrace()))
        .hint("a model file is made by torch.export.save, torch.jit.script or torch.jit.trace");
  }
}

ModelFile ModelFile::from_outline(ModelOutline outline) {
  return load(std::make_shared<SkippingReader>(std::move(outline)));
}

std::vector<std::byte> ModelFile::record(const std::string& name) const {
  ReaderSource source(*reader_);
  const ckpt::FileWindow window(source);
  const ckpt::ZipIndex zip(window);
  const ckpt::ZipEntry* entry = zip.find(name);
  return entry == nullptr ? std::vector<std::byte>{} : ckpt::read_record(window, *entry);
}

std::uint32_t ModelFile::graph_fingerprint() const {
  ReaderSource source(*reader_);
  return ckpt::graph_fingerprint(source);
}

ModelOutline ModelFile::outline() const {
  std::vector<std::uint64_t> records;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (offsets_[i] && parameters_[i].storage().nbytes() > 0 && !shared_.contains(*offsets_[i]))
      records.push_back(*offsets_[i]);
  }
  return reader_->outline(records);
}

ModelFile ModelFile::load(std::shared_ptr<SkippingReader> reader) {
  ModelFile model;
  torch::jit::ExtraFilesMap extra = {{"accel.json", ""}};
  model.reader_ = std::move(reader);
  // Loaded on the CPU, whatever the device of the export: the storages must be the buffers that the reader
  // got. They hold no values yet that would have to be copied to a device.
  model.module_ = torch::jit::load(
      std::static_pointer_cast<caffe2::serialize::ReadAdapterInterface>(model.reader_), at::kCPU, extra);
  model.accel_json_ = extra.at("accel.json");

  std::unordered_map<const at::TensorImpl*, std::size_t> index;
  for (const auto& [name, tensor] : parameters_of(model.module_)) {
    const auto [entry, is_new] = index.try_emplace(tensor.unsafeGetTensorImpl(), model.parameters_.size());
    if (!is_new) {
      model.names_[entry->second].push_back(name);
      continue;
    }
    model.parameters_.push_back(tensor);
    model.names_.push_back({name});
    model.offsets_.push_back(tensor.is_meta() ? std::nullopt
                             : tensor.storage().nbytes() == 0
                                 ? 0
                                 : model.reader_->offset_of(tensor.storage().data()));
  }

  model.read_attributes();
  return model;
}

void ModelFile::read_attributes() {
  refuse_quantized_attributes(module_);
  refuse_hidden_tensors(module_);
  std::unordered_set<const at::TensorImpl*> parameters;
  std::unordered_map<const void*, std::size_t> owners;  // Index of the parameter in each storage.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    parameters.insert(parameter.unsafeGetTensorImpl());
    if (!parameter.is_meta()) owners.emplace(parameter.storage().data(), i);
  }
  std::unordered_set<const void*> done;
  std::unordered_map<std::size_t, c10::Storage> copies;
  const auto read = [&](const std::string& attribute, const at::Tensor& tensor) {
    if (tensor.is_meta() || parameters.contains(tensor.unsafeGetTensorImpl())) return;
    const auto owner = owners.find(tensor.storage().data());
    if (owner == owners.end()) {
      fill(tensor, *reader_, done);
      return;
    }
    if (tensor.requires_grad()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("attribute '{}' is a view of parameter '{}', which is cut into shards",
                              attribute, names_[owner->second].front()))
          .hint("export a model that makes the view in its forward");
    }
    c10::Storage& copy = copies[owner->second];
    if (!copy) copy = copy_of_storage(owner->second);
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(copy);
  };
  for (const auto& module : module_.named_modules()) {
    const c10::ClassTypePtr type = module.value.type();
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const std::string name = (module.name.empty() ? "" : module.name + ".") + type->getAttributeName(slot);
      for_each_tensor(module.value._ivalue()->getSlot(slot),
                      [&](const at::Tensor& tensor) { read(name, tensor); });
    }
  }
}

c10::Storage ModelFile::copy_of_storage(std::size_t parameter) {
  const c10::Storage& storage = parameters_[parameter].storage();
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(storage.nbytes())}, at::kByte);
  if (storage.nbytes() > 0) {
    if (const auto offset = reader_->offset_of(storage.data())) {
      reader_->read_file(*offset, {static_cast<std::byte*>(bytes.mutable_data_ptr()), storage.nbytes()});
      shared_.insert(*offset);
    } else {  // The outline has the values.
      std::memcpy(bytes.mutable_data_ptr(), storage.data(), storage.nbytes());
    }
  }
  return bytes.storage();
}

ModelStructure ModelFile::structure(const std::unordered_set<const at::TensorImpl*>& cross_unit) const {
  refuse_quantized_attributes(module_);
  ModelStructure result;
  for (const auto& module : module_.named_modules())
    result.modules.push_back({module.name, class_name_of(module.value)});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i];
    result.parameters.push_back({names_[i], tensor.sizes().vec(),
                                 std::string(c10::getDtypeNames(tensor.scalar_type()).first),
                                 tensor.requires_grad(), cross_unit.contains(tensor.unsafeGetTensorImpl())});
  }
  return result;
}

std::optional<std::size_t> ModelFile::parameter_without_values() const {
  const auto found = std::find(offsets_.begin(), offsets_.end(), std::nullopt);
  if (found == offsets_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - offsets_.begin());
}

void ModelFile::read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) const {
  const at::Tensor& tensor = parameters_[index];
  const auto item = static_cast<std::int64_t>(tensor.itemsize());
  if (row_major_.index != index) row_major_ = {};
  if (tensor.is_contiguous()) {
    reader_->read_file(
        offsets_[index].value() + static_cast<std::uint64_t>((tensor.storage_offset() + begin) * item), out);
    return;
  }
  if (!row_major_.values.defined()) {
    std::vector<std::byte> storage(tensor.storage().nbytes());
    reader_->read_file(offsets_[index].value(), storage);
    const at::Tensor stored = at::from_blob(storage.data() + tensor.storage_offset() * item, tensor.sizes(),
                                            tensor.strides(), tensor.options().requires_grad(false));
    row_major_ = {index, stored.contiguous()};
  }
  std::memcpy(out.data(), static_cast<const std::byte*>(row_major_.values.const_data_ptr()) + begin * item,
              out.size());
}

}  // namespace accel::train
