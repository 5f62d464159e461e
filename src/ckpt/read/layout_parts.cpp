#include "ckpt/read/layout_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

namespace accel::ckpt {
namespace {

/// The parts that a line names.
constexpr std::size_t kShownParts = 6;

}  // namespace

std::vector<LayoutPart> left_out_parts(const Checkpoint& checkpoint, const Layout& layout, Objects objects) {
  std::vector<LayoutPart> parts;
  std::map<std::string, std::size_t> index;
  const auto part = [&](const StatePath& path) -> LayoutPart& {
    std::string name = layout.part_of(path);
    const auto [found, fresh] = index.emplace(name, parts.size());
    if (fresh) parts.push_back({std::move(name), 0, 0});
    return parts[found->second];
  };
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (!layout.below(entry.path)) ++part(entry.path).tensors;
  }
  for (const ObjectEntry& entry : checkpoint.objects()) {
    if (objects == Objects::kLeftOut || !layout.below(entry.path)) ++part(entry.path).objects;
  }
  return parts;
}

std::string to_string(const std::vector<LayoutPart>& parts) {
  const auto count = [](std::size_t n, const char* what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  std::vector<std::string> texts;
  const std::size_t shown = parts.size() > kShownParts + 1 ? kShownParts : parts.size();
  for (std::size_t i = 0; i < shown; ++i) {
    const LayoutPart& part = parts[i];
    std::vector<std::string> counts;
    if (part.tensors > 0) counts.push_back(count(part.tensors, "tensor"));
    if (part.objects > 1 || (part.objects > 0 && part.tensors > 0))
      counts.push_back(count(part.objects, "object"));
    texts.push_back(counts.empty() ? fmt::format("'{}'", part.name)
                                   : fmt::format("'{}' ({})", part.name, fmt::join(counts, ", ")));
  }
  const std::string more = shown < parts.size() ? fmt::format(" and {} more", parts.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(texts, ", "), more);
}

}  // namespace accel::ckpt
