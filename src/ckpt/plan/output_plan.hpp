#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/zip/layout.hpp"

namespace accel::ckpt {

/// A matrix of low rank that is added to a tensor, as LoRA does: scaling * (B @ A), with A [rank, columns]
/// and B [rows, rank]. The sum is computed as tensor/low_rank.hpp says.
struct LowRankUpdate {
  std::size_t a = 0;  ///< Index of A in Checkpoint::tensors().
  std::size_t b = 0;  ///< Index of B in Checkpoint::tensors().
  double scaling = 1;
  bool transposed = false;  ///< The tensor is [columns, rows], and the transposed product is added.

  friend bool operator==(const LowRankUpdate&, const LowRankUpdate&) = default;
};

/// A tensor to be written: which tensor of the source, under which name, and in which dtype.
struct OutputItem {
  StatePath path;          ///< The path in the output; fqn_of(path) is the flat name.
  std::size_t source = 0;  ///< Index into Checkpoint::tensors().
  DType dtype = DType::kFloat32;
  Dims shape;
  /// Index of an earlier item that has the same bytes. Formats with shared storages write these bytes once.
  std::optional<std::size_t> tied_to;
  /// What is added to the elements after their conversion to `dtype`, which is float32, float16 or bfloat16.
  std::optional<LowRankUpdate> update = {};
};

/// An entry that is not a tensor.
struct OutputObject {
  StatePath path;
  pickle::Value value;
};

/// The state dict to be written, in its order. No two entries have the same path.
struct OutputState {
  std::vector<OutputItem> tensors;
  std::vector<OutputObject> objects;
  /// Levels with integer keys that are dicts. Of other levels it is not known whether they are lists.
  std::set<StatePath> dicts = {};
};

/// Elements of a source tensor: the boxes one after another, each dense and row-major.
struct TensorContent {
  std::size_t source = 0;
  DType dtype = DType::kFloat32;             ///< The dtype in the output; the elements are converted to it.
  std::vector<Box> boxes;                    ///< The boxes; none stand for the whole tensor.
  std::optional<LowRankUpdate> update = {};  ///< What is added to a whole matrix, as in OutputItem.
};

/// Unchanged bytes of another file.
struct FileContent {
  std::filesystem::path file;
  std::uint64_t offset = 0;
};

/// What a segment holds: text, elements of a tensor, or bytes of a file.
using OutputContent = std::variant<std::string, TensorContent, FileContent>;

/// A range of a file to be written.
struct OutputSegment {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  OutputContent content;
};

/// A zip archive within a file. The data of its records are segments. Headers, descriptors and the directory
/// are written when the CRCs of the segments are known.
struct OutputArchive {
  std::uint64_t offset = 0;  ///< Offset in the file; the offsets of the layout are relative to it.
  ZipLayout layout;
  std::size_t first_segment = 0;  ///< Record i is the segment first_segment + i.
};

/// One file to be written. Bytes that no segment and no archive covers are zeros.
struct OutputFile {
  std::string name;  ///< The path relative to the output directory; it may contain one folder.
  std::uint64_t bytes = 0;
  std::vector<OutputSegment> segments;  ///< The segments, sorted by offset, without overlap.
  std::vector<OutputArchive> archives;
};

/// Everything that a merge, a save or a load will write, as a value that can be printed, tested and executed.
/// The planners of this folder make it from entries alone and read no tensor.
struct OutputPlan {
  std::vector<OutputFile> files;  ///< The last one completes the output: an index or `.metadata`.

  [[nodiscard]] std::uint64_t total_bytes() const;
};

/// The content of a segment that holds the elements of `item`: all of them, or those in `boxes`.
[[nodiscard]] OutputContent content_of(const OutputItem& item, std::vector<Box> boxes = {});

/// Throws Error (kFailure) if torch does not have the element type of a tensor, as no file of torch can hold
/// it.
void check_torch_dtypes(const OutputState& state);

/// A file that holds just `text`.
[[nodiscard]] OutputFile text_file(std::string name, std::string text);

/// Appends an archive to `file` at `offset`. Each record of `layout` becomes a segment with the content of
/// the same index, whose size must be that of the record. `offset` must not be before the end of the file;
/// the file then ends where the archive ends.
void append_archive(OutputFile& file, std::uint64_t offset, ZipLayout layout,
                    std::vector<OutputContent> contents);

/// Throws Error (kFailure) unless the segments of every file are sorted, do not overlap and lie within it.
void check_plan(const OutputPlan& plan);

}  // namespace accel::ckpt
