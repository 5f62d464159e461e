#include "ckpt/read/layer_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

/// The parts of a name that are looked at. Names come from files, and may have any number of parts.
constexpr std::size_t kNameParts = 12;

/// The lengths of the starts of a name that end before a dot or at its end.
std::vector<std::size_t> starts_of(std::string_view name) {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  while (ends.size() < kNameParts) {
    at = name.find('.', at);
    ends.push_back(std::min(at, name.size()));
    if (at == std::string_view::npos) break;
    ++at;
  }
  return ends;
}

/// The place of a tensor in a list of layers.
struct Place {
  std::string_view list;    ///< The name of the module that has the layers; empty for the root.
  std::int64_t number = 0;  ///< The number of the layer.
  std::string_view rest;    ///< The name inside the layer; empty for a list of tensors.
};

std::optional<Place> place_of(std::string_view name) {
  std::size_t begin = 0;
  for (const std::size_t end : starts_of(name)) {
    const std::string_view part = name.substr(begin, end - begin);
    const auto number = is_digits(part) ? parse_int<std::int64_t>(part) : std::nullopt;
    // "007" is a name, because "7" would be another one.
    if (number && std::to_string(*number) == part) {
      return Place{name.substr(0, begin == 0 ? 0 : begin - 1), *number,
                   name.substr(std::min(end + 1, name.size()))};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

void add(LayerRow& row, const LayerTensor& tensor) {
  ++row.tensors;
  row.elements = checked_add(row.elements, checked_numel(tensor.shape));
  row.bytes = checked_add(row.bytes, tensor.bytes);
  ++row.dtypes[tensor.dtype];
}

/// A layer of a list.
struct Layer {
  LayerRow row;
  std::string contents;  ///< The names, dtypes and shapes of its tensors. Equal layers have equal contents.
};

/// "0-2,4" for {0, 1, 2, 4}.
std::string ranges_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

/// Adds the rows of a list of layers, the equal ones as one, in the order of their first numbers.
void add_rows(std::string_view list, std::map<std::int64_t, Layer>& layers, std::vector<LayerRow>& rows) {
  struct Equal {
    LayerRow row;
    std::vector<std::int64_t> numbers;
  };
  std::vector<Equal> all;
  std::map<std::string, std::size_t> known;  // Maps contents to an index in `all`.
  for (auto& [number, layer] : layers) {
    check_interrupted();
    const auto [entry, is_new] = known.try_emplace(std::move(layer.contents), all.size());
    if (is_new) {
      all.push_back({std::move(layer.row), {number}});
      continue;
    }
    Equal& equal = all[entry->second];
    equal.numbers.push_back(number);
    ++equal.row.layers;
    equal.row.tensors += layer.row.tensors;
    equal.row.elements = checked_add(equal.row.elements, layer.row.elements);
    equal.row.bytes = checked_add(equal.row.bytes, layer.row.bytes);
    for (const auto& [dtype, tensors] : layer.row.dtypes) equal.row.dtypes[dtype] += tensors;
  }
  for (Equal& equal : all) {
    equal.row.name = fmt::format("{}{}{}", list, list.empty() ? "" : ".", ranges_of(equal.numbers));
    rows.push_back(std::move(equal.row));
  }
}

}  // namespace

std::vector<LayerRow> summarize_layers(std::vector<LayerTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const LayerTensor& a, const LayerTensor& b) {
    check_interrupted();
    return a.name < b.name;
  });
  std::map<std::string_view, std::map<std::int64_t, Layer>> lists;
  std::set<std::string_view> have_layers;  // The modules with layers inside.
  for (const LayerTensor& tensor : tensors) {
    const auto place = place_of(tensor.name);
    if (!place) continue;
    if (lists.try_emplace(place->list).second) {
      for (const std::size_t end : starts_of(place->list)) have_layers.insert(place->list.substr(0, end));
    }
    Layer& layer = lists[place->list][place->number];
    add(layer.row, tensor);
    layer.contents +=
        fmt::format("{}:{}{}\n", place->rest, torch_name(tensor.dtype), to_string(tensor.shape));
  }

  std::map<std::string_view, LayerRow> modules;
  for (const LayerTensor& tensor : tensors) {
    if (place_of(tensor.name)) continue;
    const std::string_view name = tensor.name;
    std::string_view module = name;
    for (const std::size_t end : starts_of(name)) {
      if (have_layers.contains(name.substr(0, end))) continue;
      module = name.substr(0, end);
      break;
    }
    add(modules[module], tensor);
  }

  std::vector<LayerRow> rows;
  auto list = lists.begin();
  for (auto& [name, row] : modules) {
    for (; list != lists.end() && list->first < name; ++list) add_rows(list->first, list->second, rows);
    row.name = name;
    rows.push_back(std::move(row));
  }
  for (; list != lists.end(); ++list) add_rows(list->first, list->second, rows);
  return rows;
}

}  // namespace accel::ckpt
