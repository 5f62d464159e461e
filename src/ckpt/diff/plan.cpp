#include "ckpt/diff/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "ckpt/read/layouts.hpp"

namespace accel::ckpt {
namespace {

// The layout that takes everything.
const Layout kAll;

bool takes_all(const Checkpoint& checkpoint, const Layout& layout) {
  const auto below = [&](const auto& entry) { return layout.below(entry.path).has_value(); };
  return std::all_of(checkpoint.tensors().begin(), checkpoint.tensors().end(), below) &&
         std::all_of(checkpoint.objects().begin(), checkpoint.objects().end(), below);
}

std::pair<Layout, Layout> layouts_of(const Checkpoint& a, const Checkpoint& b, const std::string& wanted) {
  if (wanted.empty()) {
    const Layout layout_a = layout_of(a);
    const Layout layout_b = layout_of(b);
    const bool all_a = takes_all(a, layout_a);
    const bool all_b = takes_all(b, layout_b);
    // Without a root, weights alone are compared with what stands beside state of a run.
    const bool one_is_all = layout_a.root.empty() ? all_a || all_b : all_a && all_b;
    const bool same = layout_a.root == layout_b.root && !one_is_all;
    return same ? std::pair(kAll, kAll) : std::pair(chosen_layout(a), chosen_layout(b));
  }
  const bool in_a = has_root(a, wanted);
  const bool in_b = has_root(b, wanted);
  if (!in_a && !in_b) {
    throw Error(ErrorKind::kUsage, fmt::format("neither '{}' nor '{}' has tensors under the key '{}'",
                                               a.path().string(), b.path().string(), wanted))
        .hint("accel inspect lists the names");
  }
  return {chosen_layout(a, in_a ? wanted : ""), chosen_layout(b, in_b ? wanted : "")};
}

bool can_hold_objects(Kind kind) {
  return kind == Kind::kDcp || kind == Kind::kTorch || kind == Kind::kTorchSharded || kind == Kind::kDtensor;
}

// One checkpoint's entries under the names that are compared.
struct Side {
  std::vector<DiffEntry> tensors;
  std::vector<DiffEntry> objects;
  // Names that a safetensors file only records as tied, and the tensor that each is tied to.
  std::map<std::string, std::size_t> tied;
  std::vector<std::string> left_out;
};

using Index = std::map<std::string, std::size_t>;

Index index_of(const std::vector<DiffEntry>& entries) {
  Index index;
  for (const DiffEntry& entry : entries) index.emplace(entry.name, entry.index);
  return index;
}

class SideMaker {
 public:
  SideMaker(const Checkpoint& checkpoint, Layout layout, Renames& renames)
      : checkpoint_(checkpoint), layout_(std::move(layout)), renames_(renames) {}

  Side make() {
    side_.tensors = entries_of(checkpoint_.tensors());
    side_.objects = entries_of(checkpoint_.objects());
    note_ties();
    return std::move(side_);
  }

 private:
  template <class Entries>
  std::vector<DiffEntry> entries_of(const Entries& entries) {
    std::vector<DiffEntry> named;
    std::map<std::string, std::string> sources;  // Maps a new name to the entry's own name.
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::optional<StatePath> path = layout_.below(entries[i].path);
      if (!path) {
        side_.left_out.push_back(entries[i].name);
        continue;
      }
      std::string name = renames_.apply(fqn_of(*path));
      const auto [other, fresh] = sources.emplace(name, entries[i].name);
      if (!fresh) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("'{}' and '{}' of '{}' would both be called '{}'", other->second,
                                entries[i].name, checkpoint_.path().string(), name));
      }
      named.push_back({std::move(name), i});
    }
    return named;
  }

  void note_ties() {
    Index by_own_name;
    for (std::size_t i = 0; i < checkpoint_.tensors().size(); ++i) {
      by_own_name.emplace(checkpoint_.tensors()[i].name, i);
    }
    const Index there = index_of(side_.tensors);
    for (const auto& [dropped, kept] : checkpoint_.metadata()) {
      const auto found = by_own_name.find(kept);
      const std::optional<StatePath> path = layout_.below({dropped});
      if (found == by_own_name.end() || by_own_name.contains(dropped) || !path) continue;
      std::string name = renames_.apply(fqn_of(*path));
      if (!there.contains(name)) side_.tied.emplace(std::move(name), found->second);
    }
  }

  const Checkpoint& checkpoint_;
  Layout layout_;
  Renames& renames_;
  Side side_;
};

// Removes from a side what include and exclude do not choose.
class Filter {
 public:
  explicit Filter(const DiffSelection& selection)
      : all_(selection.include.empty()),
        include_("--include", selection.include),
        exclude_("--exclude", selection.exclude) {}

  void apply(Side& side) {
    std::erase_if(side.tensors, [&](const DiffEntry& entry) { return !keeps(entry.name); });
    std::erase_if(side.objects, [&](const DiffEntry& entry) { return !keeps(entry.name); });
    std::erase_if(side.tied, [&](const auto& entry) { return !keeps(entry.first); });
  }
  void check_all_hit() const {
    include_.check_all_hit();
    exclude_.check_all_hit();
  }

 private:
  bool keeps(const std::string& name) {
    const bool included = include_.any(name) || all_;
    return !exclude_.any(name) && included;
  }

  bool all_;
  Globs include_;
  Globs exclude_;
};

void pair_tensors(const Side& a, const Side& b, DiffPlan& plan) {
  const Index in_a = index_of(a.tensors);
  const Index in_b = index_of(b.tensors);
  std::set<std::pair<std::size_t, std::size_t>> paired;
  const auto add = [&](const std::string& name, std::size_t index_a, std::size_t index_b) {
    plan.tensors.push_back({name, index_a, index_b});
    paired.emplace(index_a, index_b);
  };
  for (const DiffEntry& entry : a.tensors) {
    if (const auto same = in_b.find(entry.name); same != in_b.end()) {
      add(entry.name, entry.index, same->second);
    } else if (const auto tied = b.tied.find(entry.name); tied != b.tied.end()) {
      add(entry.name, entry.index, tied->second);
    } else {
      plan.tensors_only_a.push_back(entry);
    }
  }
  for (const DiffEntry& entry : b.tensors) {
    if (in_a.contains(entry.name)) continue;
    if (const auto tied = a.tied.find(entry.name); tied != a.tied.end()) {
      add(entry.name, tied->second, entry.index);
    } else {
      plan.tensors_only_b.push_back(entry);
    }
  }
  for (const auto& [name, index_a] : a.tied) {
    const auto other = b.tied.find(name);
    if (other != b.tied.end() && !paired.contains({index_a, other->second}))
      add(name, index_a, other->second);
  }
}

void pair_objects(const Side& a, const Side& b, DiffPlan& plan) {
  const Index in_a = index_of(a.objects);
  const Index in_b = index_of(b.objects);
  for (const DiffEntry& entry : a.objects) {
    if (const auto same = in_b.find(entry.name); same != in_b.end()) {
      plan.objects.push_back({entry.name, entry.index, same->second});
    } else {
      plan.objects_only_a.push_back(entry);
    }
  }
  for (const DiffEntry& entry : b.objects) {
    if (!in_a.contains(entry.name)) plan.objects_only_b.push_back(entry);
  }
}

}  // namespace

DiffPlan plan_diff(const Checkpoint& a, const Checkpoint& b, const DiffSelection& selection) {
  auto [layout_a, layout_b] = layouts_of(a, b, selection.root);
  const std::vector<Rename> none;
  Renames renames(selection.rename);
  Renames no_renames(none);
  Side side_a = SideMaker(a, std::move(layout_a), renames).make();
  Side side_b = SideMaker(b, std::move(layout_b), no_renames).make();
  renames.check_all_hit();
  Filter filter(selection);
  filter.apply(side_a);
  filter.apply(side_b);
  filter.check_all_hit();

  DiffPlan plan;
  pair_tensors(side_a, side_b, plan);
  if (can_hold_objects(a.kind()) && can_hold_objects(b.kind())) pair_objects(side_a, side_b, plan);
  plan.left_out_a = std::move(side_a.left_out);
  plan.left_out_b = std::move(side_b.left_out);
  return plan;
}

}  // namespace accel::ckpt
