#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "helpers.hpp"

namespace accel::ckpt::testing {

/// As Truth::part, row by row, for tensors that are large.
inline std::string part_of(const Truth& truth, const Box& box) {
  std::string bytes;
  const std::uint64_t item = item_bytes(truth.dtype);
  const auto row = static_cast<std::uint64_t>(box.sizes.empty() ? 1 : box.sizes.back());
  const std::int64_t rows = row == 0 ? 0 : box.numel() / static_cast<std::int64_t>(row);
  Dims at = box.offsets;
  for (std::int64_t i = 0; i < rows; ++i) {
    bytes.append(truth.data, static_cast<std::size_t>(flat_index(truth.shape, at)) * item, row * item);
    for (std::size_t d = at.empty() ? 0 : at.size() - 1; d-- > 0;) {
      if (++at[d] < box.offsets[d] + box.sizes[d]) break;
      at[d] = box.offsets[d];
    }
  }
  return bytes;
}

/// Puts the boxes of tensors into files, with garbage between them.
class Scatter {
 public:
  Scatter(std::filesystem::path directory, std::uint32_t seed)
      : directory_(std::move(directory)), random_(seed) {}

  /// A number in [0, count).
  std::size_t any(std::size_t count) { return random_() % count; }

  /// Box of `truth` in some file, its dimensions in any order, with gaps in between.
  Extent place(const Truth& truth, const Box& box, bool dense = false) {
    std::vector<std::size_t> order(box.sizes.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    if (!dense) std::shuffle(order.begin(), order.end(), random_);
    Extent extent{"f" + std::to_string(any(5)), 0, box, Dims(box.sizes.size(), 1)};
    std::int64_t step = 1;
    for (const std::size_t d : order) {
      extent.strides[d] = step;
      step *= box.sizes[d] + (dense ? 0 : static_cast<std::int64_t>(any(3)));
    }
    std::string& file = files_[extent.file];
    file += std::string(any(7), '#');
    extent.offset = file.size();
    const std::string data = part_of(truth, box);
    const std::uint64_t item = item_bytes(truth.dtype);
    file.resize(file.size() + static_cast<std::size_t>(std::max<std::int64_t>(step, 1)) * item, '#');
    Dims at(box.sizes.size(), 0);
    const std::int64_t numel = box.numel();
    for (std::int64_t i = 0; i < numel; ++i) {
      const std::int64_t element =
          std::inner_product(at.begin(), at.end(), extent.strides.begin(), std::int64_t{0});
      std::copy_n(data.data() + static_cast<std::size_t>(i) * item, item,
                  file.data() + extent.offset + static_cast<std::size_t>(element) * item);
      for (std::size_t d = at.size(); d-- > 0;) {
        if (++at[d] < box.sizes[d]) break;
        at[d] = 0;
      }
    }
    return extent;
  }

  /// A tensor in up to 2^cuts pieces.
  StoredTensor scatter(const Truth& truth, std::size_t cuts) {
    StoredTensor stored{fqn_of(truth.path), truth.dtype, truth.shape, {}};
    std::vector<Box> boxes{Box::whole(truth.shape)};
    for (std::size_t i = 0; i < cuts && !truth.shape.empty(); ++i) {
      std::vector<Box> cut;
      for (const Box& box : boxes) {
        const std::size_t d = any(truth.shape.size());
        const auto at = static_cast<std::int64_t>(any(static_cast<std::size_t>(box.sizes[d]) + 1));
        Box first = box;
        Box second = box;
        first.sizes[d] = at;
        second.offsets[d] += at;
        second.sizes[d] -= at;
        cut.insert(cut.end(), {first, second});
      }
      boxes = std::move(cut);
    }
    std::erase_if(boxes, [](const Box& box) { return box.numel() == 0; });
    std::shuffle(boxes.begin(), boxes.end(), random_);
    for (const Box& box : boxes) stored.extents.push_back(place(truth, box));
    return stored;
  }

  void write() const {
    std::filesystem::create_directories(directory_);
    for (const auto& [name, bytes] : files_) write_file(directory_ / name, bytes);
  }

 private:
  std::filesystem::path directory_;
  std::mt19937 random_;
  std::map<std::string, std::string> files_;
};

/// A checkpoint of tensors that a test made up, scattered over files.
class FakeCheckpoint : public Checkpoint {
 public:
  /// Each tensor in up to 2^cuts pieces; 0: whole, but still with strides of any order.
  FakeCheckpoint(const std::filesystem::path& directory, const std::vector<Truth>& truths,
                 std::uint32_t seed = 1, std::size_t cuts = 2)
      : FakeCheckpoint(directory, truths, scattered(directory, truths, seed, cuts)) {}

  /// Tensors that lie where the test says.
  FakeCheckpoint(const std::filesystem::path& directory, const std::vector<Truth>& truths,
                 std::vector<StoredTensor> stored)
      : stored_(std::move(stored)) {
    contents_.kind = Kind::kDcp;
    contents_.path = directory;
    contents_.directory = directory;
    for (std::size_t i = 0; i < truths.size(); ++i) {
      const Truth& truth = truths[i];
      contents_.tensors.push_back(
          {fqn_of(truth.path), truth.path, truth.dtype, truth.shape, stored_[i].extents.size()});
    }
  }

  pickle::Value read_object(std::size_t object) override { return objects_.at(object); }

  void add_object(StatePath path, pickle::Value value) {
    contents_.objects.push_back({fqn_of(path), std::move(path)});
    objects_.push_back(std::move(value));
  }
  /// What it is to be taken for.
  Contents& contents() { return contents_; }
  StoredTensor& stored(std::size_t tensor) { return stored_.at(tensor); }

  std::function<void(std::size_t)> before_locate;  ///< May be called by several threads at once.

 private:
  StoredTensor locate_in(std::size_t tensor, FileCache&) const override {
    if (before_locate) before_locate(tensor);
    return stored_.at(tensor);
  }

  static std::vector<StoredTensor> scattered(const std::filesystem::path& directory,
                                             const std::vector<Truth>& truths, std::uint32_t seed,
                                             std::size_t cuts) {
    Scatter scatter(directory, seed);
    std::vector<StoredTensor> stored;
    for (const Truth& truth : truths) stored.push_back(scatter.scatter(truth, cuts));
    scatter.write();
    return stored;
  }

  std::vector<StoredTensor> stored_;
  std::vector<pickle::Value> objects_;
};

}  // namespace accel::ckpt::testing
