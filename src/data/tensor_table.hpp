#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "data/sample_source.hpp"

namespace accel {

/// The samples of one or more safetensors files. The tensors of a file share their first dimension, and row i
/// of each is sample i. Several files hold the same tensors, one after the other.
class TensorTable final : public SampleSource {
 public:
  /// `source.path` is a path or a glob. Throws Error (kUsage) if nothing matches, a file is not of
  /// safetensors, a tensor has no samples or has more or fewer than another, or two files do not fit.
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
  [[nodiscard]] std::uint32_t old_fingerprint() const override;

 private:
  struct Part {
    DataFile file;
    std::vector<std::size_t> offsets;  ///< Where the rows of each field begin in the file.
    std::int64_t begin = 0;            ///< The number of the first sample.
    std::int64_t rows = 0;
  };

  void add(const std::string& path);
  [[nodiscard]] const Part& part_of(std::int64_t row) const;
  void require_known(const SampleField& field, std::int64_t row, std::span<const std::byte> bytes) const;

  std::vector<SampleField> fields_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
  std::map<std::string, std::int64_t> vocabularies_;
};

}  // namespace accel
