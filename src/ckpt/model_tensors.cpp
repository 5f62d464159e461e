#include "ckpt/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

constexpr std::int64_t kSampleElems = 1024;
constexpr std::int64_t kCompareElems = std::int64_t{1} << 18;

// The first key of all paths, if they agree and go on behind it.
std::optional<PathKey> common_root(const DcpMetadata& metadata) {
  std::optional<PathKey> root;
  const auto agrees = [&](const StatePath& path) {
    if (path.size() < 2) return false;
    if (!root) root = path.front();
    return *root == path.front();
  };
  const bool all = std::all_of(metadata.tensors.begin(), metadata.tensors.end(),
                               [&](const auto& t) { return agrees(t.path); }) &&
                   std::all_of(metadata.objects.begin(), metadata.objects.end(),
                               [&](const auto& o) { return agrees(o.path); });
  return all ? root : std::nullopt;
}

std::string without_digits(const std::string& name) {
  std::string rest;
  std::copy_if(name.begin(), name.end(), std::back_inserter(rest),
               [](char c) { return std::isdigit(static_cast<unsigned char>(c)) == 0; });
  return rest;
}

class Comparer {
 public:
  explicit Comparer(const std::filesystem::path& directory) : reader_(directory) {}

  // The first elements, by which tensors that differ are told apart cheaply.
  std::string sample(const StoredTensor& tensor) {
    const std::int64_t count = std::min(checked_numel(tensor.shape), kSampleElems);
    std::string bytes(static_cast<std::size_t>(count) * item_bytes(tensor.dtype), '\0');
    reader_.read_range(tensor, 0, count, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  bool equal(const StoredTensor& a, const StoredTensor& b) {
    const std::uint64_t item = item_bytes(a.dtype);
    const std::int64_t numel = checked_numel(a.shape);
    for (std::int64_t at = 0; at < numel; at += kCompareElems) {
      const std::int64_t end = std::min(numel, at + kCompareElems);
      for (auto& [tensor, bytes] : {std::pair(&a, &bytes_a_), std::pair(&b, &bytes_b_)}) {
        bytes->resize(static_cast<std::size_t>(end - at) * item);
        reader_.read_range(*tensor, at, end, *bytes);
      }
      if (bytes_a_ != bytes_b_) return false;
    }
    return true;
  }

  bool constant(const StoredTensor& tensor) {
    const std::uint64_t item = item_bytes(tensor.dtype);
    const std::int64_t numel = checked_numel(tensor.shape);
    std::vector<std::byte> first(item);
    reader_.read_range(tensor, 0, 1, first);
    for (std::int64_t at = 0; at < numel; at += kCompareElems) {
      const std::int64_t end = std::min(numel, at + kCompareElems);
      bytes_a_.resize(static_cast<std::size_t>(end - at) * item);
      reader_.read_range(tensor, at, end, bytes_a_);
      for (std::size_t i = 0; i < bytes_a_.size(); i += item) {
        if (std::memcmp(bytes_a_.data() + i, first.data(), item) != 0) return false;
      }
    }
    return true;
  }

 private:
  TensorReader reader_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
};

}  // namespace

ModelTensors model_tensors_of(DcpReader& reader) {
  const DcpMetadata& metadata = reader.metadata();
  const std::optional<PathKey> root = common_root(metadata);
  if (root == PathKey("optimizer")) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' is an optimizer's checkpoint; merging those is not there yet",
                            reader.directory().string()))
        .hint("the model's is usually beside it, in pytorch_model_fsdp_0");
  }
  const auto name_of = [&](const StatePath& path) {
    return root ? fqn_of(StatePath(path.begin() + 1, path.end())) : fqn_of(path);
  };
  std::vector<const DcpTensor*> ordered;
  for (const DcpTensor& tensor : metadata.tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(),
            [](const DcpTensor* a, const DcpTensor* b) { return a->position < b->position; });

  ModelTensors model;
  for (const DcpTensor* tensor : ordered) {
    model.tensors.push_back(reader.locate(*tensor));
    model.tensors.back().name = name_of(tensor->path);
  }
  for (const DcpObject& object : metadata.objects) model.objects.push_back(name_of(object.path));
  return model;
}

std::vector<Tie> find_ties(const std::vector<StoredTensor>& tensors, const std::filesystem::path& directory) {
  // Only tensors that agree in all of this can be tied; most are alone in their group and are never read.
  std::map<std::pair<DType, Dims>, std::vector<const StoredTensor*>> groups;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.shape.size() >= 2 && checked_numel(tensor.shape) > 0)
      groups[{tensor.dtype, tensor.shape}].push_back(&tensor);
  }
  Comparer comparer(directory);
  std::vector<Tie> ties;
  for (const auto& [key, group] : groups) {
    if (group.size() < 2) continue;
    std::map<std::string, std::vector<const StoredTensor*>> by_sample;
    for (const StoredTensor* tensor : group) {
      std::vector<const StoredTensor*>& kept = by_sample[comparer.sample(*tensor)];
      const auto twin = std::find_if(kept.begin(), kept.end(), [&](const StoredTensor* other) {
        return without_digits(other->name) != without_digits(tensor->name) &&
               comparer.equal(*other, *tensor) && !comparer.constant(*tensor);
      });
      if (twin != kept.end()) {
        ties.push_back({tensor->name, (*twin)->name});
      } else {
        kept.push_back(tensor);
      }
    }
  }
  std::sort(ties.begin(), ties.end(), [](const Tie& a, const Tie& b) { return a.dropped < b.dropped; });
  return ties;
}

}  // namespace accel::ckpt
