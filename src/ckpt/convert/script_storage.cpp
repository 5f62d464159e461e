#include "ckpt/convert/script_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/tensor/compare.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

// With more boxes than this, it is cheaper to assemble the storage in memory.
constexpr std::size_t kMostBoxes = std::size_t{1} << 17;
// Most elements of a tensor that is read whole. A tensor that repeats elements of a small storage may have
// any number.
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;

[[noreturn]] void disagree(const std::string& a, const std::string& b) {
  throw Error(ErrorKind::kFailure,
              fmt::format("'{}' and '{}' share their bytes in the model, but differ in the checkpoint", a, b))
      .hint(
          "the model ties them; export a model that does not, or load a checkpoint in which they are equal");
}

// Reads the whole tensor and converts it to the dtype of the model.
std::vector<std::byte> read_converted(Checkpoint& source, const StorageView& view, TensorReader& reader) {
  const StoredTensor stored = source.locate(view.source);
  const std::int64_t numel = checked_numel(stored.shape);
  if (numel > kMostElements) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' has {} elements, many of which share one place in the model; accel "
                            "does not write so many",
                            view.name, numel));
  }
  std::vector<std::byte> bytes(checked_nbytes(stored.shape, item_bytes(stored.dtype)));
  reader.read_range(stored, 0, numel, bytes);
  if (stored.dtype == view.dtype) return bytes;
  std::vector<std::byte> converted(checked_nbytes(stored.shape, item_bytes(view.dtype)));
  convert_dtype(stored.dtype, bytes, view.dtype, converted);
  return converted;
}

// Calls `visit` with the offset in bytes of each element in its storage, in row-major order.
template <class Visit>
void for_each_element(const StorageView& view, Visit visit) {
  const std::int64_t numel = checked_numel(view.shape);
  Dims position(view.shape.size(), 0);
  for (std::int64_t n = 0; n < numel; ++n) {
    const std::int64_t element =
        std::inner_product(position.begin(), position.end(), view.strides.begin(), std::int64_t{0});
    visit(view.offset + static_cast<std::uint64_t>(element) * item_bytes(view.dtype));
    for (std::size_t d = view.shape.size(); d-- > 0;) {
      if (++position[d] < view.shape[d]) break;
      position[d] = 0;
    }
  }
}

// The name of the first view that contains a byte of the storage.
std::string first_at(const std::vector<StorageView>& views, std::uint64_t byte) {
  for (const StorageView& view : views) {
    bool found = false;
    for_each_element(
        view, [&](std::uint64_t at) { found = found || (byte >= at && byte < at + item_bytes(view.dtype)); });
    if (found) return view.name;
  }
  return "";
}

}  // namespace

std::uint64_t StorageView::end() const {
  if (checked_numel(shape) == 0) return offset;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    last = checked_add(last, checked_mul(shape[d] - 1, strides.at(d)));
  }
  const auto elements = static_cast<std::uint64_t>(checked_add<std::int64_t>(last, 1));
  return checked_add(offset, checked_mul(elements, item_bytes(dtype)));
}

bool StorageView::same_place(const StorageView& other) const {
  return dtype == other.dtype && shape == other.shape && strides == other.strides && offset == other.offset;
}

std::vector<Box> boxes_in_storage_order(const Dims& shape, const Dims& strides, std::size_t most_boxes) {
  std::vector<std::size_t> order;  // Dimensions from the longest stride to the shortest.
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  std::int64_t run = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (strides[order[i]] != run) return {};
    run = checked_mul(run, shape[order[i]]);
  }
  // The innermost dimensions that are already in row-major order stay together in a box.
  std::size_t inner = order.empty() ? 0 : order.size() - 1;
  while (inner > 0 && order[inner - 1] < order[inner]) --inner;
  std::size_t count = 1;
  for (std::size_t i = 0; i < inner; ++i) {
    const auto size = static_cast<std::size_t>(shape[order[i]]);
    if (size > most_boxes / count) return {};
    count *= size;
  }
  Box box = Box::whole(shape);
  for (std::size_t i = 0; i < inner; ++i) box.sizes[order[i]] = 1;
  std::vector<Box> boxes;
  boxes.reserve(count);
  for (std::size_t n = 0; n < count; ++n) {
    boxes.push_back(box);
    for (std::size_t i = inner; i-- > 0;) {
      if (++box.offsets[order[i]] < shape[order[i]]) break;
      box.offsets[order[i]] = 0;
    }
  }
  return boxes;
}

std::optional<TensorContent> content_of_storage(const std::vector<StorageView>& views, std::uint64_t bytes,
                                                Checkpoint& source) {
  const StorageView& first = views.front();
  if (first.offset != 0 || checked_nbytes(first.shape, item_bytes(first.dtype)) != bytes) return std::nullopt;
  for (const StorageView& other : views) {
    if (!other.same_place(first)) return std::nullopt;
  }
  std::vector<Box> boxes = boxes_in_storage_order(first.shape, first.strides, kMostBoxes);
  if (boxes.empty()) return std::nullopt;
  TensorComparer comparer(source.directory(), source.directory(), [](std::uint64_t) {});
  for (const StorageView& other : views) {
    if (other.source == first.source) continue;
    const Difference difference =
        comparer.compare(source.locate(first.source), source.locate(other.source), Tolerance{});
    if (difference.elements != 0) disagree(first.name, other.name);
  }
  if (boxes.size() == 1) boxes.clear();
  return TensorContent{first.source, first.dtype, std::move(boxes)};
}

void fill_storage(std::string& storage, const std::vector<StorageView>& views, Checkpoint& source) {
  std::vector<bool> written(storage.size(), false);
  TensorReader reader(source.directory());
  for (const StorageView& view : views) {
    const std::vector<std::byte> bytes = read_converted(source, view, reader);
    const std::uint64_t item = item_bytes(view.dtype);
    std::size_t from = 0;
    for_each_element(view, [&](std::uint64_t to) {
      for (std::size_t i = 0; i < item; ++i, ++from) {
        const char byte = static_cast<char>(bytes[from]);
        if (written[to + i] && storage[to + i] != byte) disagree(first_at(views, to + i), view.name);
        written[to + i] = true;
        storage[to + i] = byte;
      }
    });
  }
}

}  // namespace accel::ckpt
