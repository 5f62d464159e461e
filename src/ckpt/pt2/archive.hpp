#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/files/file.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// A tensor in an archive of torch.export: a strided view of a record.
struct Pt2Tensor {
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;                     ///< The strides count elements.
  std::int64_t storage_offset = 0;  ///< Elements of the record before the first one.
  bool requires_grad = false;
  std::string record;  ///< The record without the archive's root, such as "data/weights/weight_0".

  /// Whether both are the same tensor, as tied parameters are.
  friend bool operator==(const Pt2Tensor&, const Pt2Tensor&) = default;
};

/// An archive that torch.export.save wrote (.pt2): a graph as JSON, and tensors as raw records. Nothing in it
/// is executed. Read with torch's versions 2.11 to 2.15; the format is described in docs/formats.md.
class Pt2Archive {
 public:
  /// Throws Error: kCorrupt if the file is not such an archive or contradicts itself; kFailure for a version
  /// of the format that accel does not know, for tensors that are pickled objects, and unless the archive
  /// holds exactly one program, which may have any name.
  explicit Pt2Archive(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// The document of the exported program.
  [[nodiscard]] const nlohmann::json& program() const { return program_; }
  /// Parameters and persistent buffers, by name.
  [[nodiscard]] const std::map<std::string, Pt2Tensor>& weights() const { return weights_; }
  /// Buffers that are not persistent and constants, by name.
  [[nodiscard]] const std::map<std::string, Pt2Tensor>& constants() const { return constants_; }
  /// The weight or constant of that name. Throws Error (kCorrupt) if there is none.
  [[nodiscard]] const Pt2Tensor& tensor(const std::string& name) const;

  /// The bytes of the record, and where they begin in the file.
  [[nodiscard]] std::uint64_t record_bytes(const Pt2Tensor& tensor) const;
  [[nodiscard]] std::uint64_t record_offset(const Pt2Tensor& tensor) const;
  /// Throws Error (kCorrupt) if the CRC of the record is wrong. Reads all of it.
  void check_crc(const Pt2Tensor& tensor) const;
  /// Where the record `name` lies in the file. Throws Error (kCorrupt) if there is none, if it is compressed,
  /// or if its CRC is wrong. Reads all of it.
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Range checked_range(const std::string& name) const;
  /// An extra file that the exporter added; empty if there is none.
  [[nodiscard]] std::string extra_file(std::string_view name) const;

 private:
  [[nodiscard]] std::string text_of(const std::string& record) const;
  [[nodiscard]] nlohmann::json json_of(const std::string& record) const;
  [[nodiscard]] std::string program_name() const;
  void read_program(const std::string& name);
  [[nodiscard]] std::map<std::string, Pt2Tensor> read_tensors(const std::string& folder,
                                                              const std::string& config);

  File file_;
  FileWindow window_;
  ZipIndex zip_;
  nlohmann::json program_;
  std::map<std::string, Pt2Tensor> weights_;
  std::map<std::string, Pt2Tensor> constants_;
};

/// The integer in `value`. Throws Error (kCorrupt) if it is something else.
[[nodiscard]] std::int64_t pt2_integer(const nlohmann::json& value);

/// The dtype with that number in the schema of torch.export, whose numbers are not those of c10. Throws Error
/// (kFailure) for one that checkpoints do not have.
[[nodiscard]] DType pt2_dtype(std::int64_t number);

}  // namespace accel::ckpt
