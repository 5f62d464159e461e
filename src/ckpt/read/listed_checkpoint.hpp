#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// A tensor whose place is known.
struct ListedTensor {
  StatePath path;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<Extent> extents;
  std::vector<Extent> copies = {};
  /// Why accel does not read it ("a sparse tensor"), or empty. Such a tensor is listed, but locate() throws.
  std::string obstacle = {};
};

/// An object whose value is known.
struct ListedObject {
  StatePath path;
  pickle::Value value;
};

/// The contents of a checkpoint, read completely except for the data of tensors.
struct Listing {
  Kind kind = Kind::kUnknown;
  std::filesystem::path path;
  std::filesystem::path directory;
  std::vector<ListedTensor> tensors;
  std::vector<ListedObject> objects;
  std::map<std::string, std::string> metadata;
  std::set<StatePath> dicts = {};  ///< As Checkpoint::dicts().
};

/// A Checkpoint over a Listing. Most readers make one.
class ListedCheckpoint final : public Checkpoint {
 public:
  /// Throws Error (kFailure) if two entries have the same name.
  explicit ListedCheckpoint(Listing listing);

  [[nodiscard]] pickle::Value read_object(std::size_t object) override;

 private:
  [[nodiscard]] StoredTensor locate_in(std::size_t tensor, FileCache& files) const override;

  std::vector<ListedTensor> tensors_;
  std::vector<ListedObject> objects_;
};

}  // namespace accel::ckpt
