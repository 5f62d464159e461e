#include "ckpt/dcp/entries.hpp"

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "ckpt/dcp/parts.hpp"

namespace accel::ckpt {
namespace {

using pickle::Field;
using pickle::NodeList;
using pickle::NodePairs;
using pickle::NodeRef;
using pickle::reject;
using pickle::Type;

class EntriesReader {
 public:
  EntriesReader(const NodePairs& state_dict, const DcpNames& names, std::size_t input_bytes)
      : state_dict_(state_dict), names_(names), budget_(input_bytes), paths_(names.size()) {}

  void read_paths(const std::optional<NodeRef>& planner_data) {
    if (!planner_data || planner_data->is_none()) return;
    const NodePairs pairs = pickle::require_mapping(*planner_data, "planner_data");
    DcpNameFinder finder(names_);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto id = finder.find(pairs.key(i), "a key of planner_data");
      if (id) paths_[*id] = pairs.value(i).id();
      if (!id) has_lost_paths_ = true;
    }
  }

  DcpEntries run() {
    for (std::size_t id = 0; id < names_.size(); ++id) read_entry(id);
    number();
    return std::move(entries_);
  }

 private:
  void read_entry(std::size_t id) {
    const DcpNames::Name& name = names_[id];
    const NodeRef value = state_dict_.value(name.entry);
    with_context("", name.fqn, [&] {
      if (const auto fields = tensor_.find(value)) {
        entries_.tensors.push_back(tensor_of(id, *fields));
        entries_.tensor_ids.push_back(static_cast<std::uint32_t>(id));
      } else if (bytes_.find(value)) {
        entries_.objects.push_back({std::string(name.fqn), path_of(id), {}});
        entries_.object_ids.push_back(static_cast<std::uint32_t>(id));
      } else {
        reject("neither a tensor nor an object", value);
      }
    });
  }

  // Makes DcpTensor::position, so far the position among all entries, the position among the tensors.
  void number() {
    std::vector<std::size_t> before(names_.size() + 1, 0);
    for (const DcpTensor& tensor : entries_.tensors) before[tensor.position + 1] = 1;
    std::partial_sum(before.begin(), before.end(), before.begin());
    for (DcpTensor& tensor : entries_.tensors) tensor.position = before[tensor.position];
  }

  DcpTensor tensor_of(std::size_t id, const NodePairs& fields) {
    DcpTensor tensor;
    tensor.fqn = names_[id].fqn;
    tensor.position = names_[id].entry;
    tensor.path = path_of(id);
    tensor.dtype = dtype_of(properties_.require(fields));
    if (tensor.dtype == DType::kUnknown) tensor.unknown_dtype = unknown_dtype_;
    dims_.read(size_.require(fields), tensor.shape, budget_);
    budget_.spend(sizeof(DcpTensor) + tensor.fqn.size() + tensor.shape.size() * sizeof(std::int64_t));
    const NodeRef chunks = chunks_.require(fields);
    const std::optional<NodeList> list = chunks.sequence();
    if (!list) reject("chunks is not a list", chunks);
    budget_.spend(list->size() * (sizeof(DcpRange) + 2 * tensor.shape.size() * sizeof(std::int64_t)));
    tensor.chunks.reserve(list->size(), tensor.shape.size());
    Box box;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const NodePairs of_chunk = chunk_.require((*list)[i]);
      dims_.read(offsets_.require(of_chunk), box.offsets, budget_);
      dims_.read(sizes_.require(of_chunk), box.sizes, budget_);
      check_within(box, tensor.shape);
      tensor.chunks.add(box);
    }
    return tensor;
  }

  // The state of TensorProperties is a tuple of 5 (torch 2.15: 6) items; the first is the dtype.
  DType dtype_of(NodeRef properties) {
    const auto call = properties.call();
    const auto state = call && !call->states().empty() ? call->states()[0].sequence() : std::nullopt;
    if (!state || state->size() < 5 || state->size() > 6)
      reject("tensor properties are expected", properties);
    const NodeRef dtype = (*state)[0];
    if (dtype_ && dtype.id() == dtype_id_) return *dtype_;
    const auto name = dtype.global();
    if (!name || name->module != "torch") reject("a dtype is expected", dtype);
    dtype_ = dtype_of_torch_name(name->name).value_or(DType::kUnknown);
    dtype_id_ = dtype.id();
    if (dtype_ == DType::kUnknown) unknown_dtype_ = fmt::format("torch.{}", name->name);
    return *dtype_;
  }

  StatePath path_of(std::size_t id) {
    if (paths_[id] == pickle::Ref()) {
      // A planner may add entries without paths. But if there is a path without an entry, too, a name is
      // damaged.
      if (has_lost_paths_)
        throw Error(ErrorKind::kCorrupt,
                    "planner_data has no path for it, but one for a name that is not in state_dict_metadata");
      return {std::string(names_[id].fqn)};
    }
    const NodeRef value(graph(), paths_[id]);
    const std::optional<NodeList> keys = value.sequence();
    if (!keys) reject("a path of planner_data is not a tuple", value);
    budget_.spend(keys->size() * sizeof(PathKey));
    StatePath path;
    path.reserve(keys->size());
    for (std::size_t i = 0; i < keys->size(); ++i) {
      const NodeRef key = (*keys)[i];
      if (const auto text = key.text()) {
        budget_.spend(text->size());
        path.emplace_back(std::in_place_type<std::string>, *text);
      } else if (const auto number = key.integer()) {
        path.emplace_back(*number);
      } else {
        reject("a path of planner_data has a key that is neither string nor integer", key);
      }
    }
    // If the name is not the path joined with dots, one of the two is damaged.
    if (const std::string fqn = fqn_of(path); fqn != names_[id].fqn)
      throw Error(ErrorKind::kCorrupt, fmt::format("planner_data gives it the path '{}'", fqn));
    return path;
  }

  // The graph of the document. There must be a name.
  [[nodiscard]] const pickle::Graph& graph() const { return state_dict_.key(0).graph(); }

  const NodePairs& state_dict_;
  const DcpNames& names_;
  DcpBudget budget_;
  bool has_lost_paths_ = false;     // planner_data has names that state_dict_metadata does not have.
  std::vector<pickle::Ref> paths_;  // Maps an id to its path; None if planner_data has no such key.
  DcpEntries entries_;
  DcpDimsReader dims_;
  std::optional<DType> dtype_;
  std::string unknown_dtype_;  // The name of dtype_ if it is kUnknown.
  pickle::Ref dtype_id_{};

  Type tensor_{kDcpModule, "TensorStorageMetadata"};
  Type bytes_{kDcpModule, "BytesStorageMetadata"};
  Type chunk_{kDcpModule, "ChunkStorageMetadata"};
  Field properties_{"TensorStorageMetadata", "properties"};
  Field size_{"TensorStorageMetadata", "size"};
  Field chunks_{"TensorStorageMetadata", "chunks"};
  Field offsets_{"ChunkStorageMetadata", "offsets"};
  Field sizes_{"ChunkStorageMetadata", "sizes"};
};

}  // namespace

DcpEntries read_dcp_entries(const NodePairs& state_dict, const std::optional<NodeRef>& planner_data,
                            const DcpNames& names, std::size_t input_bytes) {
  EntriesReader reader(state_dict, names, input_bytes);
  reader.read_paths(planner_data);
  return reader.run();
}

}  // namespace accel::ckpt
