#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/io/file_cache.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/read/kind.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// A tensor of a checkpoint: its name, type and shape. locate() says where it lies.
struct TensorEntry {
  std::string name;  ///< The name is fqn_of(path), which is unique in the checkpoint.
  StatePath path;    ///< Its place in the nested state dict, the root key included.
  DType dtype = DType::kFloat32;
  Dims shape;
  std::size_t pieces = 1;  ///< The number of pieces in which it is stored.
  std::size_t copies = 0;  ///< The number of pieces that another rank has written once more.
};

/// The names of the files that hold a tensor, each list sorted.
struct TensorFiles {
  std::vector<std::string> pieces;
  std::vector<std::string> copies;
};

/// Anything in a checkpoint that is not a tensor.
struct ObjectEntry {
  std::string name;
  StatePath path;
};

/// A checkpoint of any kind, open for reading: a list of tensors, and where the bytes of each one are. Every
/// reader makes one, and all code that reads checkpoints works on it. Nothing in the files is trusted, and
/// nothing in them is executed.
///
/// One thread at a time may use it, except for locate() with a FileCache of the thread's own. Any thread may
/// read a StoredTensor with a TensorReader of its own.
///
///   const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
///   TensorReader reader(checkpoint->directory());
///   const StoredTensor stored = checkpoint->locate(0);
///   reader.read_range(stored, begin, end, bytes);
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  [[nodiscard]] Kind kind() const { return contents_.kind; }
  /// The file, or the directory, that was opened.
  [[nodiscard]] const std::filesystem::path& path() const { return contents_.path; }
  /// The directory that the file names of StoredTensors are relative to.
  [[nodiscard]] const std::filesystem::path& directory() const { return contents_.directory; }
  /// All tensors, in the order of the state dict as far as the format keeps it.
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return contents_.tensors; }
  [[nodiscard]] const std::vector<ObjectEntry>& objects() const { return contents_.objects; }
  /// The `__metadata__` of safetensors; empty for other kinds.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return contents_.metadata; }
  /// The paths of the dicts with integer keys, as far as the format tells them from lists.
  [[nodiscard]] const std::set<StatePath>& dicts() const { return contents_.dicts; }
  /// The version that the `.metadata` of a DCP checkpoint states; empty for other kinds.
  [[nodiscard]] const std::string& version() const { return contents_.version; }

  /// Says where tensors()[tensor] lies. It reads what is needed for that and caches nothing. Throws Error
  /// (kCorrupt) if the files contradict the entry.
  [[nodiscard]] StoredTensor locate(std::size_t tensor);
  /// Locates a tensor for several threads at once. Each needs its own `files`, opened on directory().
  [[nodiscard]] StoredTensor locate(std::size_t tensor, FileCache& files) const {
    return locate_in(tensor, files);
  }
  /// Throws Error (kCorrupt) unless the pieces of tensors()[tensor] cover each of its elements once.
  virtual void check_coverage(std::size_t tensor);
  /// The files that hold tensors()[tensor], whether they are there or not. Throws what locate() throws.
  [[nodiscard]] virtual TensorFiles files_of(std::size_t tensor);
  /// Where the first piece of a tensor lies, as a text; empty if the tensor has no elements, or if that
  /// cannot be said. Throws what locate() throws.
  [[nodiscard]] virtual std::string place_of(std::size_t tensor);
  /// Whether two tensors with the same place_of() have all their elements in the same bytes of the same
  /// files.
  [[nodiscard]] virtual bool shares_bytes(std::size_t a, std::size_t b);
  /// Groups of tensors that are one tensor, as a record beside the checkpoint says.
  [[nodiscard]] virtual std::vector<std::vector<std::size_t>> recorded_ties() const;
  /// The name of the file that holds objects()[object]; empty where the format keeps objects beside tensors.
  [[nodiscard]] virtual std::string file_of_object(std::size_t object) const;
  /// objects()[object] as a value; tensors inside it are Objects.
  [[nodiscard]] virtual pickle::Value read_object(std::size_t object) = 0;

 protected:
  struct Contents {
    Kind kind = Kind::kUnknown;
    std::filesystem::path path;
    std::filesystem::path directory;
    std::vector<TensorEntry> tensors;
    std::vector<ObjectEntry> objects;
    std::map<std::string, std::string> metadata;
    std::string version;
    std::set<StatePath> dicts;
  };

  Checkpoint() = default;

  [[nodiscard]] virtual StoredTensor locate_in(std::size_t tensor, FileCache& files) const = 0;

  Contents contents_;  ///< The constructor of each kind fills it.

 private:
  std::optional<FileCache> files_;
};

/// The groups of tensors that have one name if `tied` gives a name to some of them.
[[nodiscard]] std::vector<std::vector<std::size_t>> groups_of(const std::vector<TensorEntry>& tensors,
                                                              const std::map<std::string, std::string>& tied);

/// Opens one checkpoint or model file of any kind. `path` is what find_checkpoint returned, or a file or
/// directory that is a checkpoint itself. Throws Error: kMissing, kCorrupt, or kFailure if it is not a
/// checkpoint.
[[nodiscard]] std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& path);

}  // namespace accel::ckpt
