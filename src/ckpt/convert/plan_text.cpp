#include "ckpt/convert/plan_text.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/interrupt.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

/// A line for the tensor, and one for each of its extents.
std::vector<std::string> describe(const TensorContent& content, Checkpoint& source,
                                  const std::vector<std::string>& names) {
  const TensorEntry& entry = source.tensors().at(content.source);
  std::string text = fmt::format("{} {} {}", entry.name, torch_name(entry.dtype), to_string(entry.shape));
  if (!names.empty() && names.at(content.source) != entry.name) {
    text = fmt::format("{} = {}", names[content.source], text);
  }
  for (const Box& box : content.boxes) text += " " + to_string(box);
  if (content.dtype != entry.dtype) text += fmt::format(" as {}", torch_name(content.dtype));
  if (content.update) {
    const auto name_of = [&](std::size_t tensor) { return source.tensors().at(tensor).name; };
    text += fmt::format(" + {} * {} @ {}{}", content.update->scaling, name_of(content.update->b),
                        name_of(content.update->a), content.update->transposed ? ", transposed" : "");
  }
  std::vector<std::string> lines{std::move(text)};
  for (const Extent& extent : source.locate(content.source).extents) {
    lines.push_back(
        fmt::format("    {} from {} at byte {}", to_string(extent.box), extent.file, extent.offset));
  }
  return lines;
}

}  // namespace

std::vector<std::string> names_in_output(const OutputState& state, const Checkpoint& source) {
  std::vector<std::string> names(source.tensors().size());
  for (const OutputItem& item : state.tensors) {
    if (!item.tied_to) names.at(item.source) = fqn_of(item.path);
  }
  return names;
}

std::vector<std::string> describe(const OutputPlan& plan, Checkpoint& source,
                                  const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (const OutputFile& file : plan.files) {
    lines.push_back(fmt::format("{}: {} ({} bytes)", file.name, format_bytes(file.bytes), file.bytes));
    for (const OutputSegment& segment : file.segments) {
      check_interrupted();
      const std::string range =
          fmt::format("  bytes {} to {}: ", segment.offset, segment.offset + segment.bytes);
      if (const auto* tensor = std::get_if<TensorContent>(&segment.content)) {
        const std::size_t first = lines.size();
        for (std::string& line : describe(*tensor, source, names)) lines.push_back(std::move(line));
        lines[first].insert(0, range);
      } else if (const auto* other = std::get_if<FileContent>(&segment.content)) {
        lines.push_back(range + fmt::format("'{}' from byte {}", other->file.string(), other->offset));
      }
    }
  }
  return lines;
}

}  // namespace accel::ckpt
