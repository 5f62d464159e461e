#include "ckpt/plan/output_plan.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

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

}  // namespace

std::uint64_t OutputPlan::total_bytes() const {
  std::uint64_t total = 0;
  for (const OutputFile& file : files) total = checked_add(total, file.bytes);
  return total;
}

OutputContent content_of(const OutputItem& item, std::vector<Box> boxes) {
  if (checked_numel(item.shape) == 0) return std::string();
  return TensorContent{item.source, item.dtype, std::move(boxes), item.update};
}

void check_torch_dtypes(const OutputState& state) {
  for (const OutputItem& item : state.tensors) {
    // A tensor of an unknown dtype is refused where its bytes are looked for, and with its name.
    if (info_of(item.dtype).in_torch || item.dtype == DType::kUnknown) continue;
    throw Error(ErrorKind::kFailure, fmt::format("tensor '{}' is {}, which torch does not have",
                                                 fqn_of(item.path), torch_name(item.dtype)))
        .hint("write safetensors, or leave it out with --exclude");
  }
}

OutputFile text_file(std::string name, std::string text) {
  OutputFile file;
  file.name = std::move(name);
  file.bytes = text.size();
  file.segments.push_back({0, file.bytes, std::move(text)});
  return file;
}

void append_archive(OutputFile& file, std::uint64_t offset, ZipLayout layout,
                    std::vector<OutputContent> contents) {
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

}  // namespace accel::ckpt
