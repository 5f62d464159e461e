#include "ckpt/read/converted_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "ckpt/read/layouts.hpp"

namespace accel::ckpt {
namespace {

/// The index of each tensor that the layout takes, by its name without the root.
std::map<std::string, std::size_t> index_of(const Checkpoint& checkpoint, const Layout& layout) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    if (const auto relative = layout.below(checkpoint.tensors()[i].path)) index.emplace(fqn_of(*relative), i);
  }
  return index;
}

class ConvertedCheckpoint final : public Checkpoint {
 public:
  ConvertedCheckpoint(std::unique_ptr<Checkpoint> inner, std::vector<TensorConversion> conversions)
      : inner_(std::move(inner)), conversions_(std::move(conversions)) {
    contents_.kind = inner_->kind();
    contents_.path = inner_->path();
    contents_.directory = inner_->directory();
    contents_.objects = inner_->objects();
    contents_.metadata = inner_->metadata();
    contents_.version = inner_->version();
    contents_.dicts = inner_->dicts();
    const Layout layout = layout_of(*inner_);
    const std::map<std::string, std::size_t> index = index_of(*inner_, layout);
    // A converted tensor stands where the first tensor stands that it consists of.
    std::map<std::size_t, std::vector<std::size_t>> first_used;
    std::set<std::size_t> used;
    for (std::size_t c = 0; c < conversions_.size(); ++c) {
      const std::vector<std::size_t> sources = sources_of(conversions_[c], index);
      first_used[*std::min_element(sources.begin(), sources.end())].push_back(c);
      used.insert(sources.begin(), sources.end());
      sources_.push_back(sources);
    }
    check_all_is_used();
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      check_interrupted();
      const auto converted = first_used.find(i);
      if (converted != first_used.end()) {
        for (const std::size_t c : converted->second) add(entry_of(c, layout.root), {true, c});
      }
      if (!used.contains(i)) add(inner_->tensors()[i], {false, i});
    }
  }

  void check_coverage(std::size_t tensor) override {
    const Place& place = places_.at(tensor);
    if (!place.is_converted) return inner_->check_coverage(place.index);
    Checkpoint::check_coverage(tensor);
  }
  [[nodiscard]] std::string place_of(std::size_t tensor) override {
    const std::optional<std::size_t> inner = inner_of(tensor);
    return inner ? inner_->place_of(*inner) : "";
  }
  [[nodiscard]] bool shares_bytes(std::size_t a, std::size_t b) override {
    return inner_->shares_bytes(inner_of(a).value(), inner_of(b).value());
  }
  [[nodiscard]] std::vector<std::vector<std::size_t>> recorded_ties() const override {
    std::map<std::size_t, std::size_t> outer;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (const std::optional<std::size_t> inner = inner_of(i)) outer.emplace(*inner, i);
    }
    std::vector<std::vector<std::size_t>> ties;
    for (const std::vector<std::size_t>& group : inner_->recorded_ties()) {
      std::vector<std::size_t> tie;
      for (const std::size_t inner : group) {
        if (const auto found = outer.find(inner); found != outer.end()) tie.push_back(found->second);
      }
      if (tie.size() > 1) ties.push_back(std::move(tie));
    }
    return ties;
  }
  [[nodiscard]] std::string file_of_object(std::size_t object) const override {
    return inner_->file_of_object(object);
  }
  [[nodiscard]] pickle::Value read_object(std::size_t object) override { return inner_->read_object(object); }

 private:
  /// Where a tensor comes from: an index into conversions_, or into the tensors of inner_.
  struct Place {
    bool is_converted = false;
    std::size_t index = 0;
  };

  /// The tensor of inner_ that this one is, perhaps under another name; nothing if it consists of parts.
  [[nodiscard]] std::optional<std::size_t> inner_of(std::size_t tensor) const {
    const Place& place = places_.at(tensor);
    if (!place.is_converted) return place.index;
    if (conversions_[place.index].from.empty()) return std::nullopt;
    return sources_[place.index].front();
  }

  void add(TensorEntry entry, Place place) {
    if (!names_.insert(entry.name).second) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' has a tensor '{}' beside those of which it would be made",
                              path().string(), entry.name))
          .hint("leave one or the other out of the weights");
    }
    contents_.tensors.push_back(std::move(entry));
    places_.push_back(place);
  }

  /// The indices of the tensors that the conversion's parts come from, in the order of the parts.
  [[nodiscard]] std::vector<std::size_t> sources_of(const TensorConversion& conversion,
                                                    const std::map<std::string, std::size_t>& index) const {
    const auto find = [&](const std::string& name) {
      const auto found = index.find(name);
      if (found != index.end()) return found->second;
      throw Error(ErrorKind::kUsage, fmt::format("'{}' has no tensor '{}', of which '{}' is made",
                                                 path().string(), name, conversion.name));
    };
    if (!conversion.from.empty()) return {find(conversion.from)};
    std::vector<std::size_t> sources;
    for (const TensorPart& part : conversion.parts) sources.push_back(find(part.from));
    return sources;
  }

  [[nodiscard]] TensorEntry entry_of(std::size_t c, const StatePath& root) const {
    const TensorConversion& conversion = conversions_[c];
    const TensorEntry& first = inner_->tensors()[sources_[c].front()];
    TensorEntry entry = first;
    if (conversion.from.empty()) {
      entry.shape = shape_of(conversion.parts);
      entry.pieces = entry.copies = 0;
      for (std::size_t p = 0; p < conversion.parts.size(); ++p) {
        const TensorEntry& source = inner_->tensors()[sources_[c][p]];
        check_fits(conversion, conversion.parts[p], source, first);
        entry.pieces += source.pieces;
        entry.copies += source.copies;
      }
    }
    entry.path = root;
    entry.path.emplace_back(conversion.name);
    entry.name = fqn_of(entry.path);
    return entry;
  }

  void check_fits(const TensorConversion& conversion, const TensorPart& part, const TensorEntry& source,
                  const TensorEntry& first) const {
    const std::string which =
        fmt::format("'{}': '{}', a part of '{}'", path().string(), part.from, conversion.name);
    const Dims& shape = source.shape;
    bool fits = shape.size() == part.box.sizes.size();
    for (std::size_t dim = 0; fits && dim < shape.size(); ++dim) {
      const std::int64_t begin = part.box.offsets[dim];
      fits = begin <= shape[dim] && part.box.sizes[dim] <= shape[dim] - begin;
    }
    if (!fits) {
      throw Error(ErrorKind::kUsage, fmt::format("{}, is {}, which does not contain the box {}", which,
                                                 to_string(shape), to_string(part.box)))
          .hint("the notes of the model file describe weights of other sizes; export the model again");
    }
    if (source.dtype == first.dtype) return;
    throw Error(ErrorKind::kUsage, fmt::format("{}, is {}, but '{}' is {}", which, torch_name(source.dtype),
                                               first.name, torch_name(first.dtype)))
        .hint("write both in the same dtype");
  }

  /// Each element of a tensor of which parts are taken belongs to one part. Weights of other sizes than the
  /// model's may hold more, and notes of another hand may take a half twice and the other one not at all.
  void check_all_is_used() const {
    std::map<std::size_t, std::vector<Box>> taken;  // The parts of each inner tensor.
    for (std::size_t c = 0; c < conversions_.size(); ++c) {
      for (std::size_t p = 0; p < conversions_[c].parts.size(); ++p)
        taken[sources_[c][p]].push_back(conversions_[c].parts[p].box);
    }
    for (const auto& [source, boxes] : taken) {
      check_interrupted();
      const TensorEntry& entry = inner_->tensors()[source];
      const auto where = [&] {
        return fmt::format("'{}': '{}' is {}", path().string(), entry.name, to_string(entry.shape));
      };
      constexpr const char* kHint =
          "the notes of the model file describe weights of other sizes; export the model again";
      std::int64_t count = 0;
      for (const Box& box : boxes) count = checked_add(count, checked_numel(box.sizes));
      if (count < checked_numel(entry.shape)) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("{}, of which the model takes {} elements alone", where(), count))
            .hint(kHint);
      }
      try {
        check_disjoint(std::span<const Box>(boxes));
      } catch (const Error& error) {
        throw Error(ErrorKind::kUsage, fmt::format("{}, and the model takes an element of it twice: {}",
                                                   where(), error.message()))
            .hint(kHint);
      }
    }
  }

  [[nodiscard]] StoredTensor locate_in(std::size_t tensor, FileCache& files) const override {
    const Place& place = places_.at(tensor);
    if (!place.is_converted) return inner_->locate(place.index, files);
    const TensorConversion& conversion = conversions_[place.index];
    const std::vector<std::size_t>& sources = sources_[place.index];
    StoredTensor stored = inner_->locate(sources.front(), files);
    const TensorEntry& entry = contents_.tensors[tensor];
    stored.name = entry.name;
    if (!conversion.from.empty()) return stored;
    stored = {entry.name, entry.dtype, entry.shape, {}};
    const std::uint64_t item = item_bytes(entry.dtype);
    for (std::size_t p = 0; p < conversion.parts.size(); ++p) {
      const StoredTensor source = inner_->locate(sources[p], files);
      const auto place_in = [&](std::vector<Extent>& target, const std::vector<Extent>& extents) {
        for (Extent& extent : extents_in_target(conversion.parts[p], extents, item))
          target.push_back(std::move(extent));
      };
      place_in(stored.extents, source.extents);
      place_in(stored.copies, source.copies);
    }
    return stored;
  }

  std::unique_ptr<Checkpoint> inner_;
  std::vector<TensorConversion> conversions_;
  std::vector<std::vector<std::size_t>> sources_;  ///< For each conversion, the inner tensor of each part.
  std::vector<Place> places_;                      ///< Where each tensor comes from.
  std::set<std::string> names_;
};

}  // namespace

std::set<std::string> tensor_names(const Checkpoint& checkpoint) {
  std::set<std::string> names;
  for (const auto& [name, index] : index_of(checkpoint, layout_of(checkpoint))) names.insert(name);
  return names;
}

std::vector<TensorConversion> conversions_by_pattern(const std::set<std::string>& names,
                                                     std::span<const PatternRename> rules,
                                                     std::string_view origin) {
  std::vector<TensorConversion> conversions;
  std::vector<bool> hit(rules.size(), false);
  std::map<std::string, std::string> origin_of;
  for (const std::string& name : names) {
    std::string renamed = name;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      const auto& [pattern, replacement] = rules[r];
      if (!pattern.is_found_in(renamed)) continue;
      hit[r] = true;
      renamed = pattern.replaced_in(renamed, replacement);
    }
    const auto [first, is_new] = origin_of.try_emplace(renamed, name);
    if (!is_new) {
      throw Error(ErrorKind::kUsage, fmt::format("{}: '{}' and '{}' would both be called '{}'", origin,
                                                 first->second, name, renamed));
    }
    if (renamed != name) conversions.push_back({renamed, name, {}});
  }
  if (const auto miss = std::find(hit.begin(), hit.end(), false); miss != hit.end()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: the pattern '{}' is found in no name", origin,
                            rules[static_cast<std::size_t>(miss - hit.begin())].first.text()))
        .hint("accel inspect lists the names");
  }
  return conversions;
}

std::vector<TensorConversion> applicable(std::vector<TensorConversion> conversions,
                                         const std::set<std::string>& names) {
  std::set<std::string> targets;
  for (const TensorConversion& conversion : conversions) targets.insert(conversion.name);
  const auto is_there = [&](const std::string& name) { return names.contains(name); };
  const bool applies =
      std::any_of(conversions.begin(), conversions.end(), [&](const TensorConversion& conversion) {
        const std::set<std::string> sources = conversion.sources();
        return std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
          return is_there(source) && !targets.contains(source);
        });
      });
  if (!applies) return {};
  std::vector<TensorConversion> result;
  for (TensorConversion& conversion : conversions) {
    const std::set<std::string> sources = conversion.sources();
    const auto missing = std::find_if_not(sources.begin(), sources.end(), is_there);
    if (missing == sources.end()) {
      result.push_back(std::move(conversion));
    } else if (std::any_of(sources.begin(), sources.end(), is_there)) {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' is made of {} tensors, of which '{}' is missing",
                                                   conversion.name, sources.size(), *missing))
          .hint("the notes of the model file (weight_conversions) say so");
    }
  }
  return result;
}

std::unique_ptr<Checkpoint> convert_tensors(std::unique_ptr<Checkpoint> checkpoint,
                                            std::vector<TensorConversion> conversions) {
  if (conversions.empty()) return checkpoint;
  return std::make_unique<ConvertedCheckpoint>(std::move(checkpoint), std::move(conversions));
}

std::unique_ptr<Checkpoint> with_tensors_of_model(std::unique_ptr<Checkpoint> checkpoint,
                                                  std::string_view conversions) {
  std::vector<TensorConversion> applied =
      applicable(parse_conversions(conversions), tensor_names(*checkpoint));
  return convert_tensors(std::move(checkpoint), std::move(applied));
}

}  // namespace accel::ckpt
