#include "data/formats/tensor_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "ckpt/safetensors/header.hpp"
#include "data/files/integers.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/fingerprint.hpp"

namespace accel {
namespace {

std::string text_of(const SampleField& field) {
  return fmt::format("{} [samples{}{}]", ckpt::torch_name(field.dtype), field.shape.empty() ? "" : ", ",
                     fmt::join(field.shape, ", "));
}

// Throws unless the fields of another file are the same.
void require_same(const std::vector<SampleField>& fields, const std::vector<SampleField>& first,
                  const std::string& first_path) {
  const auto names = [](const std::vector<SampleField>& of) {
    std::vector<std::string> result;
    result.reserve(of.size());
    for (const SampleField& field : of) result.push_back(field.name);
    return result;
  };
  if (names(fields) != names(first)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("it has the tensors [{}], but '{}' has [{}]", fmt::join(names(fields), ", "),
                            first_path, fmt::join(names(first), ", ")));
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (text_of(fields[i]) == text_of(first[i])) continue;
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is {}, but {} in '{}'", fields[i].name,
                                               text_of(fields[i]), text_of(first[i]), first_path));
  }
}

// Whether integers that may be tokens are signed; nothing for other dtypes.
std::optional<bool> sign_of(ckpt::DType dtype) {
  switch (dtype) {
    case ckpt::DType::kInt8:
    case ckpt::DType::kInt16:
    case ckpt::DType::kInt32:
    case ckpt::DType::kInt64:
      return true;
    case ckpt::DType::kUInt16:
    case ckpt::DType::kUInt32:
      return false;
    default:
      return std::nullopt;
  }
}

/// The tensors of a safetensors file, and where its rows are.
struct Tensors {
  std::vector<SampleField> fields;
  TensorTable::Rows rows;
};

Tensors tensors_of(const DataFile& file) {
  ckpt::SafetensorsHeader header;
  try {
    header = ckpt::read_safetensors_header(File::open_read(file.path()));
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, fmt::format("it is not a safetensors file: {}", error.message()))
        .hint("format 'tensors' reads what safetensors.torch.save_file wrote");
  }
  if (header.entries.empty()) throw Error(ErrorKind::kUsage, "it holds no tensors");
  std::sort(header.entries.begin(), header.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  Tensors tensors;
  std::int64_t& rows = tensors.rows.count;
  rows = header.entries.front().shape.empty() ? 0 : header.entries.front().shape.front();
  for (const ckpt::SafetensorsEntry& entry : header.entries) {
    if (!entry.obstacle.empty()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is {}, which accel does not read", entry.name, entry.obstacle));
    }
    if (entry.shape.empty())
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is a scalar and has no dimension of samples", entry.name));
    if (entry.shape.front() != rows) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' has {} samples, but '{}' has {}", header.entries.front().name, rows,
                              entry.name, entry.shape.front()))
          .hint("the first dimension of each tensor counts the samples");
    }
    if (entry.end == entry.begin)
      throw Error(ErrorKind::kUsage, fmt::format("'{}' has no elements", entry.name));
    tensors.fields.push_back(
        {entry.name,
         entry.dtype,
         {entry.shape.begin() + 1, entry.shape.end()},
         static_cast<std::size_t>((entry.end - entry.begin) / static_cast<std::uint64_t>(rows))});
    tensors.rows.values_at.push_back(header.buffer_offset + entry.begin);
  }
  if (header.buffer_offset + header.buffer_bytes != file.size())
    throw Error(ErrorKind::kUsage, "it has changed while it was opened");
  return tensors;
}
}  // namespace

TensorTable TensorTable::open(const config::DataSource& source) {
  std::optional<TensorTable> table;
  for (const std::string& path : data_files(source.path)) {
    try {
      DataFile file(path);
      Tensors tensors = tensors_of(file);
      if (table) {
        require_same(tensors.fields, table->fields_, table->files_.front().file.path());
      } else {
        table.emplace(std::move(tensors.fields));
      }
      table->add(std::move(file), {std::move(tensors.rows)});
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  return *std::move(table);
}

void TensorTable::add(DataFile file, const std::vector<Rows>& rows) {
  files_.push_back({std::move(file), rows_});
  for (const Rows& more : rows) {
    parts_.push_back({files_.size() - 1, rows_, more.values_at});
    rows_ += more.count;
  }
}

const TensorTable::Part& TensorTable::part_of(std::int64_t row) const {
  if (row < 0 || row >= rows_) throw Error(ErrorKind::kFailure, "reading past the end of the data");
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), row,
                       [](std::int64_t number, const Part& part) { return number < part.begin; });
  return *std::prev(after);
}

void TensorTable::read_bytes(std::size_t field, std::int64_t row, std::size_t begin,
                             std::span<std::byte> out) const {
  const Part& part = part_of(row);
  files_[part.file].file.read(
      part.values_at[field] + static_cast<std::uint64_t>(row - part.begin) * fields_[field].bytes + begin,
      out);
}

void TensorTable::read(std::int64_t row, Labels /*labels*/, std::span<const std::span<std::byte>> out) const {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (out[i].empty()) continue;
    read_bytes(i, row, 0, out[i]);
    require_known(fields_[i], row, out[i]);
  }
}

void TensorTable::require_known(const SampleField& field, std::int64_t row,
                                std::span<const std::byte> bytes) const {
  const auto sign = sign_of(field.dtype);
  const auto known = vocabularies_.find(field.name);
  if (known == vocabularies_.end() || !sign) return;
  const std::size_t item_bytes = ckpt::item_bytes(field.dtype);
  std::vector<std::int64_t> tokens(bytes.size() / item_bytes);
  read_integers(bytes.data(), item_bytes, *sign, tokens);
  const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                  [&](std::int64_t token) { return token < 0 || token >= known->second; });
  if (wrong == tokens.end()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: token {} of '{}' is not in the model's vocabulary of {} tokens", position(row),
                          *wrong, field.name, known->second))
      .hint("was the data made with another tokenizer than the model's?");
}

std::string TensorTable::size_text() const { return fmt::format("{} samples", rows_); }

void TensorTable::set_vocabularies(std::map<std::string, std::int64_t> tokens) {
  vocabularies_ = std::move(tokens);
}

std::vector<const DataFile*> TensorTable::files_of(std::int64_t row) const { return {&file_of(row).file}; }

std::uint32_t TensorTable::fingerprint() const { return fingerprint_of(*this); }

std::vector<std::int64_t> TensorTable::file_ends() const {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 1; i < files_.size(); ++i) ends.push_back(files_[i].begin);
  ends.push_back(rows_);
  return ends;
}

void TensorTable::accept_changes() const {
  for (const FileOfRows& its : files_) its.file.accept_change();
}

std::string TensorTable::position(std::int64_t row) const {
  const FileOfRows& its = file_of(row);
  return fmt::format("data file '{}', sample {}", its.file.path(), row - its.begin);
}

std::unique_ptr<SampleSource> open_tensor_table(const config::DataSource& source) {
  return std::make_unique<TensorTable>(TensorTable::open(source));
}

}  // namespace accel
