#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/zip/layout.hpp"

namespace accel::ckpt {

/// A tensor to be written: which one of the source, under which name, as what.
struct OutputItem {
  StatePath path;          ///< In the output; fqn_of(path) is its flat name.
  std::size_t source = 0;  ///< Index into Checkpoint::tensors().
  DType dtype = DType::kFloat32;
  Dims shape;
  /// Index of an item before this one that has the same bytes: formats with shared storages write them once.
  std::optional<std::size_t> tied_to;
};

/// What is no tensor.
struct OutputObject {
  StatePath path;
  pickle::Value value;
};

/// The state dict to be written, in its order; no two entries have the same path.
struct OutputState {
  std::vector<OutputItem> tensors;
  std::vector<OutputObject> objects;
};

/// Elements of a source tensor, dense and row-major in each box, the boxes one after another.
struct TensorContent {
  std::size_t source = 0;
  DType dtype = DType::kFloat32;  ///< As written; another one than the source's is a conversion.
  std::vector<Box> boxes;         ///< None: the whole tensor.
};

/// Bytes of another file, as they are.
struct FileContent {
  std::filesystem::path file;
  std::uint64_t offset = 0;
};

/// What a segment is filled with.
using OutputContent = std::variant<std::string, TensorContent, FileContent>;

/// A range of a file to be written.
struct OutputSegment {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  OutputContent content;
};

/// A zip archive within a file: its records' data are segments; headers, descriptors and directory are
/// written around them once their CRCs are known.
struct OutputArchive {
  std::uint64_t offset = 0;  ///< In the file; the layout's offsets are relative to it.
  ZipLayout layout;
  std::size_t first_segment = 0;  ///< Record i is the segment first_segment + i.
};

/// One file to be written. What no segment and no archive covers is zeros.
struct OutputFile {
  std::string name;  ///< Relative to the output directory; may have one folder in it.
  std::uint64_t bytes = 0;
  std::vector<OutputSegment> segments;  ///< Ascending by offset, without overlap.
  std::vector<OutputArchive> archives;
};

/// Everything that a merge, a save or a load will write, as a value: it can be printed, tested and executed.
/// Pure: made from entries alone, before any byte of a tensor is read.
struct OutputPlan {
  std::vector<OutputFile> files;  ///< The last one makes the output complete: an index, a `.metadata`.

  [[nodiscard]] std::uint64_t total_bytes() const;
};

/// The content of a segment that is elements of `item`: all of it, or `boxes`.
[[nodiscard]] OutputContent content_of(const OutputItem& item, std::vector<Box> boxes = {});

/// A file that is this text.
[[nodiscard]] OutputFile text_file(std::string name, std::string text);

/// Appends `archive`'s records to `file` at `offset`: one segment for each, with these contents, whose sizes
/// are those of the layout. `offset` must be at or behind the file's end, which moves behind the archive.
void append_archive(OutputFile& file, std::uint64_t offset, ZipLayout layout,
                    std::vector<OutputContent> contents);

/// Throws Error (kFailure) unless the segments of every file ascend, do not overlap and lie within it.
void check_plan(const OutputPlan& plan);

}  // namespace accel::ckpt
