#include "ckpt/convert/ties.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

constexpr std::int64_t kSampleElems = 1024;
constexpr std::int64_t kCompareElems = std::int64_t{1} << 18;

std::string without_digits(const std::string& name) {
  std::string rest;
  std::copy_if(name.begin(), name.end(), std::back_inserter(rest),
               [](char c) { return std::isdigit(static_cast<unsigned char>(c)) == 0; });
  return rest;
}

// Compares tensors of the same dtype and shape, block by block.
class Comparer {
 public:
  explicit Comparer(Checkpoint& source) : source_(source), reader_(source.directory()) {}

  // The first elements. Comparing them is a cheap way to see that tensors differ.
  std::string sample(const OutputItem& item) {
    const std::int64_t count = std::min(checked_numel(item.shape), kSampleElems);
    const StoredTensor stored = source_.locate(item.source);
    std::string bytes(static_cast<std::size_t>(count) * item_bytes(stored.dtype), '\0');
    reader_.read_range(stored, 0, count, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  bool equal(const OutputItem& a, const OutputItem& b) {
    const StoredTensor stored_a = source_.locate(a.source);
    const StoredTensor stored_b = source_.locate(b.source);
    bool same = true;
    for_each_block(a, [&](std::int64_t begin, std::int64_t end, std::uint64_t bytes) {
      bytes_a_.resize(bytes);
      bytes_b_.resize(bytes);
      reader_.read_range(stored_a, begin, end, bytes_a_);
      reader_.read_range(stored_b, begin, end, bytes_b_);
      same = std::memcmp(bytes_a_.data(), bytes_b_.data(), bytes) == 0;
      return same;
    });
    return same;
  }

  bool constant(const OutputItem& item) {
    const StoredTensor stored = source_.locate(item.source);
    const std::uint64_t item_size = item_bytes(stored.dtype);
    std::vector<std::byte> first(item_size);
    reader_.read_range(stored, 0, 1, first);
    bool constant = true;
    for_each_block(item, [&](std::int64_t begin, std::int64_t end, std::uint64_t bytes) {
      bytes_a_.resize(bytes);
      reader_.read_range(stored, begin, end, bytes_a_);
      for (std::size_t i = 0; i < bytes && constant; i += item_size) {
        constant = std::memcmp(bytes_a_.data() + i, first.data(), item_size) == 0;
      }
      return constant;
    });
    return constant;
  }

 private:
  template <class Function>
  void for_each_block(const OutputItem& item, Function function) {
    const std::int64_t numel = checked_numel(item.shape);
    const std::uint64_t item_size = item_bytes(source_.tensors()[item.source].dtype);
    for (std::int64_t at = 0; at < numel; at += kCompareElems) {
      const std::int64_t end = std::min(numel, at + kCompareElems);
      if (!function(at, end, static_cast<std::uint64_t>(end - at) * item_size)) return;
    }
  }

  Checkpoint& source_;
  TensorReader reader_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
};

// Whether the names differ in more than digits. The same tensor of all layers has the same name except for
// digits.
bool names_differ(const OutputState& state, const std::vector<std::size_t>& group) {
  const std::string first = without_digits(fqn_of(state.tensors[group.front()].path));
  return std::any_of(group.begin(), group.end(), [&](std::size_t index) {
    return without_digits(fqn_of(state.tensors[index].path)) != first;
  });
}

bool has_sharing(Kind kind) {
  return kind != Kind::kSafetensors && kind != Kind::kSafetensorsSharded && kind != Kind::kDcpSafetensors;
}

// Marks tensors that are equal although nothing says that they are tied.
void mark_equal(Checkpoint& source, OutputState& state) {
  // Only tensors of the same group can be tied. Most tensors are alone in their group and are never read.
  std::map<std::tuple<DType, DType, Dims>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const OutputItem& item = state.tensors[i];
    if (!item.tied_to && item.shape.size() >= 2 && checked_numel(item.shape) > 0) {
      groups[{source.tensors()[item.source].dtype, item.dtype, item.shape}].push_back(i);
    }
  }
  Comparer comparer(source);
  for (const auto& [key, group] : groups) {
    if (!names_differ(state, group)) continue;
    std::map<std::string, std::vector<std::size_t>> by_sample;
    for (const std::size_t index : group) {
      OutputItem& item = state.tensors[index];
      std::vector<std::size_t>& kept = by_sample[comparer.sample(item)];
      const auto twin = std::find_if(kept.begin(), kept.end(), [&](std::size_t other) {
        const OutputItem& before = state.tensors[other];
        return without_digits(fqn_of(before.path)) != without_digits(fqn_of(item.path)) &&
               comparer.equal(before, item) && !comparer.constant(item);
      });
      if (twin != kept.end()) {
        item.tied_to = *twin;
      } else {
        kept.push_back(index);
      }
    }
  }
}

}  // namespace

bool may_hide_ties(Kind kind) {
  return kind == Kind::kDcp || kind == Kind::kDcpSafetensors || kind == Kind::kSafetensors ||
         kind == Kind::kSafetensorsSharded || kind == Kind::kLocal;
}

void mark_shared(Checkpoint& source, OutputState& state) {
  if (!has_sharing(source.kind())) return;
  std::map<std::string, std::vector<std::size_t>> at_place;  // The items that begin at each place.
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    OutputItem& item = state.tensors[i];
    if (item.tied_to || checked_numel(item.shape) == 0) continue;
    const std::string place = source.place_of(item.source);
    if (place.empty()) continue;
    std::vector<std::size_t>& known = at_place[place];
    const auto same = std::find_if(known.begin(), known.end(), [&](std::size_t other) {
      return source.shares_bytes(state.tensors[other].source, item.source);
    });
    if (same != known.end()) {
      item.tied_to = *same;
    } else {
      known.push_back(i);
    }
  }
}

void mark_recorded(Checkpoint& source, OutputState& state,
                   const std::vector<std::vector<std::size_t>>& groups) {
  if (groups.empty()) return;
  Comparer comparer(source);
  std::map<std::size_t, std::size_t> items;  // Maps the index of a tensor in the source to that of its item.
  for (std::size_t i = 0; i < state.tensors.size(); ++i) items.emplace(state.tensors[i].source, i);
  for (const std::vector<std::size_t>& group : groups) {
    std::vector<std::size_t> there;
    for (const std::size_t tensor : group) {
      if (const auto found = items.find(tensor); found != items.end()) there.push_back(found->second);
    }
    std::sort(there.begin(), there.end());
    for (const std::size_t index : there) {
      OutputItem& item = state.tensors[index];
      const OutputItem& first = state.tensors[there.front()];
      if (index == there.front() || item.tied_to || item.shape != first.shape || item.dtype != first.dtype)
        continue;
      if (source.tensors()[item.source].dtype == source.tensors()[first.source].dtype &&
          comparer.equal(first, item))
        item.tied_to = there.front();
    }
  }
}

void mark_ties(Checkpoint& source, OutputState& state, EqualTensors equal) {
  mark_shared(source, state);
  mark_recorded(source, state, source.recorded_ties());
  if (equal == EqualTensors::kDropped && may_hide_ties(source.kind())) mark_equal(source, state);
  // A tensor that shares the storage of a tied tensor is tied to the same tensor as that one.
  for (OutputItem& item : state.tensors) {
    while (item.tied_to && state.tensors[*item.tied_to].tied_to)
      item.tied_to = state.tensors[*item.tied_to].tied_to;
  }
}

}  // namespace accel::ckpt
