#include "data/arrow/arrow_schema.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.hpp"

namespace accel {
namespace {

using ckpt::DType;

constexpr int kDeepest = 16;               // How deep types may nest.
constexpr std::size_t kMostTypes = 10000;  // How many types a schema may have, also of parts of columns.
// Texts of a damaged schema may overlap, and its columns may share metadata, so that a small one names any
// amount.
constexpr std::size_t kMostTextBytes = std::size_t{16} << 20;
constexpr std::uint64_t kMostPairs = 1'000'000;

// Codes of the union Type in Schema.fbs.
constexpr unsigned kInt = 2;
constexpr unsigned kFloatingPoint = 3;
constexpr unsigned kList = 12;
constexpr unsigned kUnion = 14;
constexpr unsigned kFixedSizeList = 16;
constexpr unsigned kLargeList = 21;

/// A type of Arrow: how many buffers an array has beside those of its children, and what a message says of a
/// column of it.
struct Kind {
  unsigned code;
  std::size_t buffers;
  bool is_view;  ///< Each record batch says how many more buffers there are.
  std::string_view obstacle;
};
constexpr auto kKinds = std::to_array<Kind>({
    {1, 0, false, "has nothing but nulls"},
    {kInt, 2, false, ""},
    {kFloatingPoint, 2, false, ""},
    {4, 3, false, "has binary values"},
    {5, 3, false, "has texts"},
    {6, 2, false, "has booleans, which Arrow stores as bits"},
    {7, 2, false, "has decimal numbers"},
    {8, 2, false, "has dates"},
    {9, 2, false, "has times"},
    {10, 2, false, "has times"},
    {11, 2, false, "has times"},
    {kList, 2, false, ""},
    {13, 1, false, "has structs"},
    {kUnion, 1, false, "has unions"},
    {15, 2, false, "has binary values"},
    {kFixedSizeList, 1, false, ""},
    {17, 2, false, "has maps"},
    {18, 2, false, "has times"},
    {19, 3, false, "has binary values"},
    {20, 3, false, "has texts"},
    {kLargeList, 2, false, ""},
    {22, 0, false, "is encoded by runs"},
    {23, 2, true, "has binary values"},
    {24, 2, true, "has texts"},
    {25, 3, false, "has list views"},
    {26, 3, false, "has list views"},
});

const Kind& kind_of(unsigned code) {
  for (const Kind& kind : kKinds) {
    if (kind.code == code) return kind;
  }
  throw Error(ErrorKind::kUsage, fmt::format("it has the type {}, which accel does not know", code));
}

std::optional<DType> integer_of(std::int32_t bits, bool is_signed) {
  switch (bits) {
    case 8:
      return is_signed ? DType::kInt8 : DType::kUInt8;
    case 16:
      return is_signed ? DType::kInt16 : DType::kUInt16;
    case 32:
      return is_signed ? DType::kInt32 : DType::kUInt32;
    case 64:
      return is_signed ? DType::kInt64 : DType::kUInt64;
    default:
      return std::nullopt;
  }
}

std::optional<DType> number_of(unsigned code, const FlatTable& type) {
  if (code == kInt) return integer_of(type.number<std::int32_t>(0, 0), type.number<std::uint8_t>(1, 0) != 0);
  switch (type.number<std::int16_t>(0, 0)) {
    case 0:
      return DType::kFloat16;
    case 1:
      return DType::kFloat32;
    case 2:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

/// Reads the fields of a schema into columns.
class SchemaReader {
 public:
  ArrowColumn column(const FlatTable& field) {
    column_ = {};
    column_.name = text_of(field.text(0));
    add(field, 0);
    return std::move(column_);
  }

 private:
  std::string text_of(std::string_view text) {
    text_bytes_ += text.size();
    if (text_bytes_ > kMostTextBytes)
      throw Error(ErrorKind::kUsage,
                  fmt::format("its columns have names of more than {} bytes", kMostTextBytes));
    return std::string(text);
  }

  void block(std::string obstacle) {
    if (column_.obstacle.empty()) column_.obstacle = std::move(obstacle);
  }

  /// Adds a field and its children, in the order in which record batches have them.
  void add(const FlatTable& field, int depth) {
    if (depth > kDeepest || ++count_ > kMostTypes)
      throw Error(ErrorKind::kUsage, "it has a type that nests too deep, or too many types");
    block_extension(field);
    ++column_.nodes;
    if (field.table(4)) {  // The batches have the numbers of values, and the values are in a dictionary.
      column_.buffers += 2;
      return block("is encoded with a dictionary");
    }
    const unsigned code = field.number<std::uint8_t>(2, 0);
    const Kind& kind = kind_of(code);
    const auto type = field.table(3);
    if (!type) throw Error(ErrorKind::kUsage, fmt::format("'{}' has no type", column_.name));
    constexpr std::int16_t kDense = 1;
    const bool is_dense = code == kUnion && type->number<std::int16_t>(0, 0) == kDense;
    column_.buffers += kind.buffers + (is_dense ? 1 : 0);
    column_.views += kind.is_view ? 1 : 0;
    if (!kind.obstacle.empty()) block(std::string(kind.obstacle));
    const FlatVector children = field.vector(5, 4);
    if (code == kInt || code == kFloatingPoint) {
      const auto dtype = number_of(code, *type);
      if (!dtype || children.size != 0) throw Error(ErrorKind::kUsage, "it has numbers of no known size");
      column_.dtype = *dtype;
    } else if (code == kList || code == kLargeList || code == kFixedSizeList) {
      const std::int32_t items = code == kFixedSizeList ? type->number<std::int32_t>(0, 0) : 0;
      if (children.size != 1 || items < 0)
        throw Error(ErrorKind::kUsage, fmt::format("'{}' has lists without items", column_.name));
      if (code == kFixedSizeList && items == 0) block("has lists without items");
      column_.lists.push_back({code == kList ? 4U : code == kLargeList ? 8U : 0U, items});
    }
    for (std::uint64_t i = 0; i < children.size; ++i) add(field.table_of(children, i), depth + 1);
  }

  /// An extension says what the numbers mean. Those of datasets are arrays, which are lists of lists.
  void block_extension(const FlatTable& field) {
    const FlatVector pairs = field.vector(6, 4);
    pairs_ += pairs.size;
    if (pairs_ > kMostPairs)
      throw Error(ErrorKind::kUsage,
                  fmt::format("its columns have more than {} pairs of metadata", kMostPairs));
    for (std::uint64_t i = 0; i < pairs.size; ++i) {
      const FlatTable pair = field.table_of(pairs, i);
      const std::string_view value = pair.text(1);
      if (pair.text(0) == "ARROW:extension:name" && !value.starts_with("datasets."))
        block(fmt::format("has the extension type '{}'", text_of(value)));
    }
  }

  ArrowColumn column_;
  std::size_t count_ = 0;
  std::size_t text_bytes_ = 0;
  std::uint64_t pairs_ = 0;
};

}  // namespace

std::vector<ArrowColumn> arrow_columns(const FlatTable& schema) {
  if (schema.number<std::int16_t>(0, 0) != 0)
    throw Error(ErrorKind::kUsage, "it has big-endian numbers, and only little-endian ones are supported");
  const FlatVector fields = schema.vector(1, 4);
  if (fields.size == 0) throw Error(ErrorKind::kUsage, "it has no columns");
  std::vector<ArrowColumn> columns;
  std::set<std::string> names;
  SchemaReader reader;
  for (std::uint64_t i = 0; i < fields.size; ++i) {
    columns.push_back(reader.column(schema.table_of(fields, i)));
    if (!names.insert(columns.back().name).second)
      throw Error(ErrorKind::kUsage, fmt::format("it has two columns '{}'", columns.back().name));
  }
  return columns;
}

}  // namespace accel
