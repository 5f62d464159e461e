#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"
#include "core/config/config.hpp"
#include "data/data_file.hpp"

namespace accel {

/// The samples of one or more safetensors files. The tensors of a file share their first dimension, and row i
/// of each is sample i. Several files hold the same tensors, one after the other.
class TensorTable {
 public:
  /// What a sample has under one name.
  struct Field {
    std::string name;
    ckpt::DType dtype = ckpt::DType::kFloat32;
    std::vector<std::int64_t> row_shape;  ///< The shape without the dimension of samples.
    std::size_t row_bytes = 0;
  };

  /// `source.path` is a path or a glob. Throws Error (kUsage) if nothing matches, a file is not of
  /// safetensors, a tensor has no samples or has more or fewer than another, or two files do not fit.
  static TensorTable open(const config::DataSource& source);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  /// The fields, sorted by name.
  [[nodiscard]] const std::vector<Field>& fields() const { return fields_; }
  /// Fills `out` with the bytes of a field in a sample, from byte `begin` of them on. A file that has become
  /// too short is an Error of kind kUsage that names it.
  void read(std::size_t field, std::int64_t row, std::size_t begin, std::span<std::byte> out) const;
  /// The numbers behind the last sample of each file.
  [[nodiscard]] std::vector<std::int64_t> file_ends() const;
  /// The file that holds a sample.
  [[nodiscard]] const DataFile& file_of(std::int64_t row) const { return part_of(row).file; }
  /// Says where a sample is: "data file 'FILE', sample I", where I counts the samples of the file.
  [[nodiscard]] std::string place_of(std::int64_t row) const;
  /// Makes DataFile::change() of every file compare with its present state.
  void accept_changes() const;

 private:
  struct Part {
    DataFile file;
    std::vector<std::size_t> offsets;  ///< Where the rows of each field begin in the file.
    std::int64_t begin = 0;            ///< The number of the first sample.
    std::int64_t rows = 0;
  };

  void add(const std::string& path);
  [[nodiscard]] const Part& part_of(std::int64_t row) const;

  std::vector<Field> fields_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
};

}  // namespace accel
