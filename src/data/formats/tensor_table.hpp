#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {

/// Samples that are rows of tensors in one or more files, one file after the other. The values of a row lie
/// in one piece for each field.
class TensorTable final : public SampleSource {
 public:
  /// Rows whose values follow one another in a file.
  struct Rows {
    std::int64_t count = 0;
    std::vector<std::uint64_t> values_at;  ///< Where in the file the first row has each field.
  };

  /// `fields` are sorted by name.
  explicit TensorTable(std::vector<SampleField> fields) : fields_(std::move(fields)) {}
  /// Adds the rows of the next file, which has the same fields.
  void add(DataFile file, const std::vector<Rows>& rows);

  /// Opens safetensors files, whose tensors share their first dimension: row i of each is sample i. Several
  /// files hold the same tensors. `source.path` is a path or a glob. Throws Error (kUsage) if nothing
  /// matches, a file is not of safetensors, a tensor has no samples or has more or fewer than another, or two
  /// files do not fit.
  static TensorTable open(const config::DataSource& source);

  [[nodiscard]] std::int64_t size() const override { return rows_; }
  [[nodiscard]] std::string size_text() const override;
  /// The fields, sorted by name.
  [[nodiscard]] const std::vector<SampleField>& fields() const override { return fields_; }
  void read(std::int64_t row, Labels labels, std::span<const std::span<std::byte>> out) const override;
  /// Fills `out` with the bytes of a field in a sample, from byte `begin` of them on. A file that has become
  /// too short is an Error of kind kUsage that names it.
  void read_bytes(std::size_t field, std::int64_t row, std::size_t begin, std::span<std::byte> out) const;
  void set_vocabularies(std::map<std::string, std::int64_t> tokens) override;
  /// The numbers behind the last sample of each file.
  [[nodiscard]] std::vector<std::int64_t> file_ends() const;
  /// Returns "data file 'FILE', sample I", where I counts the samples of the file.
  [[nodiscard]] std::string position(std::int64_t row) const override;
  [[nodiscard]] std::vector<const DataFile*> files_of(std::int64_t row) const override;
  void accept_changes() const override;
  [[nodiscard]] std::uint32_t fingerprint() const override;

 private:
  struct Part {
    std::size_t file = 0;    ///< Its number in files_.
    std::int64_t begin = 0;  ///< The number of the first sample.
    std::vector<std::uint64_t> values_at;
  };
  struct FileOfRows {
    DataFile file;
    std::int64_t begin = 0;  ///< The number of its first sample.
  };

  [[nodiscard]] const Part& part_of(std::int64_t row) const;
  [[nodiscard]] const FileOfRows& file_of(std::int64_t row) const { return files_[part_of(row).file]; }
  void require_known(const SampleField& field, std::int64_t row, std::span<const std::byte> bytes) const;

  std::vector<SampleField> fields_;
  std::vector<FileOfRows> files_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
  std::map<std::string, std::int64_t> vocabularies_;
};

}  // namespace accel
