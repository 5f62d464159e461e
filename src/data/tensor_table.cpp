#include "data/tensor_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel {
namespace {

std::string text_of(const TensorTable::Field& field) {
  return fmt::format("{} [samples{}{}]", ckpt::torch_name(field.dtype), field.row_shape.empty() ? "" : ", ",
                     fmt::join(field.row_shape, ", "));
}

// Throws unless the fields of another file are the same.
void require_same(const std::vector<TensorTable::Field>& fields, const std::vector<TensorTable::Field>& first,
                  const std::string& first_path) {
  const auto names = [](const std::vector<TensorTable::Field>& of) {
    std::vector<std::string> result;
    result.reserve(of.size());
    for (const TensorTable::Field& field : of) result.push_back(field.name);
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

}  // namespace

TensorTable TensorTable::open(const config::DataSource& source) {
  TensorTable table;
  for (const std::string& path : data_files(source.path)) {
    try {
      table.add(path);
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  return table;
}

void TensorTable::add(const std::string& path) {
  ckpt::SafetensorsHeader header;
  try {
    header = ckpt::read_safetensors_header(File::open_read(path));
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, fmt::format("it is not a safetensors file: {}", error.message()))
        .hint("format 'tensors' reads what safetensors.torch.save_file wrote");
  }
  if (header.entries.empty()) throw Error(ErrorKind::kUsage, "it holds no tensors");
  std::sort(header.entries.begin(), header.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  Part part{.file = DataFile(path), .offsets = {}, .begin = rows_, .rows = -1};
  std::vector<Field> fields;
  for (const ckpt::SafetensorsEntry& entry : header.entries) {
    if (!entry.obstacle.empty()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is {}, which accel does not read", entry.name, entry.obstacle));
    }
    if (entry.shape.empty())
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' is a scalar and has no dimension of samples", entry.name));
    if (part.rows < 0) part.rows = entry.shape.front();
    if (entry.shape.front() != part.rows) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' has {} samples, but '{}' has {}", header.entries.front().name, part.rows,
                              entry.name, entry.shape.front()))
          .hint("the first dimension of each tensor counts the samples");
    }
    if (entry.end == entry.begin)
      throw Error(ErrorKind::kUsage, fmt::format("'{}' has no elements", entry.name));
    fields.push_back(
        {entry.name,
         entry.dtype,
         {entry.shape.begin() + 1, entry.shape.end()},
         static_cast<std::size_t>((entry.end - entry.begin) / static_cast<std::uint64_t>(part.rows))});
    part.offsets.push_back(static_cast<std::size_t>(header.buffer_offset + entry.begin));
  }
  if (header.buffer_offset + header.buffer_bytes != part.file.size())
    throw Error(ErrorKind::kUsage, "it has changed while it was opened");
  if (parts_.empty()) {
    fields_ = std::move(fields);
  } else {
    require_same(fields, fields_, parts_.front().file.path());
  }
  rows_ += part.rows;
  parts_.push_back(std::move(part));
}

const TensorTable::Part& TensorTable::part_of(std::int64_t row) const {
  if (row < 0 || row >= rows_) throw Error(ErrorKind::kFailure, "reading past the end of the data");
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), row,
                       [](std::int64_t number, const Part& part) { return number < part.begin; });
  return *std::prev(after);
}

void TensorTable::read(std::size_t field, std::int64_t row, std::size_t begin,
                       std::span<std::byte> out) const {
  const Part& part = part_of(row);
  const std::size_t bytes = fields_[field].row_bytes;
  part.file.read(part.offsets[field] + static_cast<std::size_t>(row - part.begin) * bytes + begin, out);
}

std::vector<std::int64_t> TensorTable::file_ends() const {
  std::vector<std::int64_t> ends;
  for (const Part& part : parts_) ends.push_back(part.begin + part.rows);
  return ends;
}

void TensorTable::accept_changes() const {
  for (const Part& part : parts_) part.file.accept_change();
}

std::string TensorTable::place_of(std::int64_t row) const {
  const Part& part = part_of(row);
  return fmt::format("data file '{}', sample {}", part.file.path(), row - part.begin);
}

}  // namespace accel
