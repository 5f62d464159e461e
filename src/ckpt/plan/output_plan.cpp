#include "ckpt/plan/output_plan.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

void check_file(const OutputFile& file) {
  std::uint64_t end = 0;
  for (const OutputSegment& segment : file.segments) {
    if (segment.offset < end) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("two parts of '{}' would overlap at byte {}", file.name, segment.offset));
    }
    end = checked_add(segment.offset, segment.bytes);
    const auto* text = std::get_if<std::string>(&segment.content);
    if (text != nullptr && text->size() != segment.bytes) {
      throw Error(ErrorKind::kFailure, fmt::format("a part of '{}' has {} bytes, planned with {}", file.name,
                                                   text->size(), segment.bytes));
    }
  }
  if (end > file.bytes) {
    throw Error(ErrorKind::kFailure,
                fmt::format("parts of '{}' reach to byte {} of {}", file.name, end, file.bytes));
  }
}

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
  std::vector<std::string> lines{std::move(text)};
  for (const Extent& extent : source.locate(content.source).extents) {
    lines.push_back(
        fmt::format("    {} from {} at byte {}", to_string(extent.box), extent.file, extent.offset));
  }
  return lines;
}

}  // namespace

std::uint64_t OutputPlan::total_bytes() const {
  std::uint64_t total = 0;
  for (const OutputFile& file : files) total = checked_add(total, file.bytes);
  return total;
}

void append_archive(OutputFile& file, std::uint64_t offset, ZipLayout layout,
                    std::vector<decltype(OutputSegment::content)> contents) {
  if (contents.size() != layout.records().size() || offset < file.bytes) {
    throw Error(ErrorKind::kFailure,
                fmt::format("an archive of {} records with {} contents, at byte {} of '{}', which has {}",
                            layout.records().size(), contents.size(), offset, file.name, file.bytes));
  }
  const std::size_t first = file.segments.size();
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const ZipRecord& record = layout.records()[i];
    file.segments.push_back({checked_add(offset, record.data_offset), record.size, std::move(contents[i])});
  }
  file.bytes = checked_add(offset, layout.total_bytes());
  file.archives.push_back({offset, std::move(layout), first});
}

void check_plan(const OutputPlan& plan) {
  for (const OutputFile& file : plan.files) check_file(file);
}

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
