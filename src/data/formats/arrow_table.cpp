#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "data/arrow/arrow_dataset.hpp"
#include "data/arrow/arrow_file.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/tensor_table.hpp"

namespace accel {
namespace {

constexpr std::int64_t kBlock = 65536;  // So many lists are looked at at once.

/// Lists that follow one another, all of one size.
struct EqualLists {
  std::int64_t first = 0;  ///< Where the first begins among the items below.
  std::int64_t size = 0;
};

std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// The rows of Arrow files as a table of tensors. A column whose rows all have one shape is a field. Why
/// another one is not stays with the field, since a training may do without it.
class RowsOfFiles {
 public:
  void add(const std::string& path) {
    DataFile file(path);
    ArrowLayout layout = read_arrow_layout(file);
    if (fields_.empty()) {
      begin(layout.columns);
    } else {
      require_same(layout.columns);
    }
    std::vector<TensorTable::Rows> rows;
    for (const ArrowBatch& batch : layout.batches) {
      TensorTable::Rows& added = rows.emplace_back();
      added.count = batch.rows;
      for (std::size_t i = 0; i < fields_.size(); ++i) {
        const std::size_t column = order_[i];
        added.values_at.push_back(place_of(file, i, layout.columns[column], batch.chunks[column]));
      }
    }
    files_.emplace_back(std::move(file), std::move(rows));
  }

  std::unique_ptr<TensorTable> table() && {
    auto table = std::make_unique<TensorTable>(std::move(fields_));
    for (auto& [file, rows] : files_) {
      if (!rows.empty()) table->add(std::move(file), rows);
    }
    return table;
  }

 private:
  void begin(const std::vector<ArrowColumn>& columns) {
    columns_ = columns;
    order_.resize(columns.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return columns[a].name < columns[b].name; });
    for (const std::size_t column : order_) {
      fields_.push_back({.name = columns[column].name,
                         .dtype = columns[column].dtype,
                         .shape = {},
                         .bytes = 0,
                         .obstacle = columns[column].obstacle});
    }
    shaped_by_.resize(fields_.size());
  }

  void require_same(const std::vector<ArrowColumn>& columns) const {
    const auto text = [](const std::vector<ArrowColumn>& of) {
      std::string result;
      for (const ArrowColumn& column : of) {
        result += fmt::format("{}{} {}", result.empty() ? "" : ", ", column.name,
                              column.obstacle.empty() ? ckpt::torch_name(column.dtype) : column.obstacle);
        for (std::size_t i = 0; i < column.lists.size(); ++i) result += "[]";
      }
      return result;
    };
    if (text(columns) == text(columns_)) return;
    throw Error(ErrorKind::kUsage, fmt::format("it has the columns {}, but '{}' has {}", text(columns),
                                               files_.front().first.path(), text(columns_)));
  }

  /// Where in the file the values of field `number` begin in a batch. `column` is the file's own: the types
  /// of the lists may differ between files. What is wrong with the values becomes the obstacle of the field.
  std::uint64_t place_of(const DataFile& file, std::size_t number, const ArrowColumn& column,
                         const ArrowChunk& chunk) {
    SampleField& field = fields_[number];
    if (field.obstacle.empty() && chunk.has_nulls) block(field, "has nulls");
    if (!field.obstacle.empty()) return 0;
    std::vector<std::int64_t> shape;
    std::int64_t first = 0;
    std::int64_t count = chunk.counts.front();
    for (std::size_t level = 0; level < column.lists.size(); ++level) {
      const auto lists = equal_lists(file, field, column, chunk, level, first, count);
      if (!lists) return 0;
      first = lists->first;
      count *= lists->size;
      shape.push_back(lists->size);
    }
    const std::size_t item_bytes = ckpt::item_bytes(field.dtype);
    if (count == 0) {
      block(field, "has rows without values");
    } else if (field.bytes == 0) {
      field.shape = std::move(shape);
      field.bytes = static_cast<std::size_t>(count / chunk.counts.front()) * item_bytes;
      shaped_by_[number] = file.path();
    } else if (field.shape != shape) {
      block(field, fmt::format("has rows of different shapes, such as {} in '{}' and {} in '{}'",
                               text_of(field.shape), shaped_by_[number], text_of(shape), file.path()));
    }
    return chunk.values_at + static_cast<std::uint64_t>(first) * item_bytes;
  }

  static void block(SampleField& field, std::string obstacle) {
    field.obstacle = std::move(obstacle);
    field.shape.clear();
    field.bytes = 0;
  }

  /// Looks at the lists `first` to `first + count` of a level; nothing, and an obstacle, if their sizes
  /// differ.
  static std::optional<EqualLists> equal_lists(const DataFile& file, SampleField& field,
                                               const ArrowColumn& column, const ArrowChunk& chunk,
                                               std::size_t level, std::int64_t first, std::int64_t count) {
    if (const ArrowList& list = column.lists[level]; list.offset_bytes == 0)
      return EqualLists{first * list.items, list.items};
    std::optional<EqualLists> lists;
    for (std::int64_t done = 0; done < count; done += kBlock) {
      const auto offsets =
          read_arrow_offsets(file, column, chunk, level, first + done, std::min(kBlock, count - done));
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        const std::int64_t size = offsets[i + 1] - offsets[i];
        if (!lists) lists = {offsets[i], size};
        if (size == lists->size) continue;
        block(field, fmt::format("has lists of different lengths, such as {} and {}", lists->size, size));
        return std::nullopt;
      }
    }
    return lists.value_or(EqualLists{});
  }

  std::vector<ArrowColumn> columns_;
  std::vector<std::size_t> order_;  ///< The column of each field.
  std::vector<SampleField> fields_;
  std::vector<std::string> shaped_by_;  ///< The file whose rows gave each field its shape.
  std::vector<std::pair<DataFile, std::vector<TensorTable::Rows>>> files_;
};

std::unique_ptr<TensorTable> table_of(const std::string& pattern) {
  RowsOfFiles rows;
  for (const std::string& path : arrow_files(pattern)) {
    try {
      rows.add(path);
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  auto table = std::move(rows).table();
  if (table->size() == 0) throw Error(ErrorKind::kUsage, fmt::format("'{}' has no rows", pattern));
  return table;
}

}  // namespace

std::unique_ptr<SampleSource> open_arrow_table(const config::DataSource& source) {
  return table_of(source.path);
}

}  // namespace accel
