#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ckpt/io/crc32.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "helpers.hpp"

namespace accel::ckpt::testing {

/// The state that has all of `truths`, as they are.
inline OutputState state_of(const std::vector<Truth>& truths) {
  OutputState state;
  for (std::size_t i = 0; i < truths.size(); ++i) {
    state.tensors.push_back({truths[i].path, i, truths[i].dtype, truths[i].shape, std::nullopt});
  }
  return state;
}

inline std::string segment_bytes(const OutputSegment& segment, const std::vector<Truth>& truths) {
  if (const auto* text = std::get_if<std::string>(&segment.content)) return *text;
  if (const auto* file = std::get_if<FileContent>(&segment.content)) {
    return read_file(file->file).substr(file->offset, segment.bytes);
  }
  const auto& tensor = std::get<TensorContent>(segment.content);
  const Truth& truth = truths.at(tensor.source);
  EXPECT_EQ(tensor.dtype, truth.dtype) << "conversions are the executor's tests";
  if (tensor.boxes.empty()) return truth.data;
  std::string bytes;
  for (const Box& box : tensor.boxes) bytes += truth.part(box);
  return bytes;
}

/// What a planned file holds, put together in memory as simply as can be.
inline std::string file_bytes(const OutputFile& file, const std::vector<Truth>& truths) {
  check_plan({{file}});
  std::string bytes(file.bytes, '\0');
  std::vector<std::uint32_t> crcs;
  const auto put = [&](std::uint64_t at, const std::string& text) {
    ASSERT_LE(at + text.size(), bytes.size());
    bytes.replace(at, text.size(), text);
  };
  for (const OutputSegment& segment : file.segments) {
    const std::string part = segment_bytes(segment, truths);
    EXPECT_EQ(part.size(), segment.bytes) << file.name << " at " << segment.offset;
    crcs.push_back(crc32(bytes_of(part)));
    put(segment.offset, part);
  }
  for (const OutputArchive& archive : file.archives) {
    const std::vector<ZipRecord>& records = archive.layout.records();
    const std::span<const std::uint32_t> own = std::span(crcs).subspan(archive.first_segment, records.size());
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::string descriptor = archive.layout.descriptor(i, own[i]);
      end = records[i].data_offset + records[i].size;
      put(archive.offset + records[i].header_offset, archive.layout.header(i));
      put(archive.offset + end, descriptor);
      end += descriptor.size();
    }
    put(archive.offset + end, archive.layout.directory(own));
  }
  return bytes;
}

/// Writes the files of a plan below `directory`.
inline void write_plan(const std::filesystem::path& directory, const OutputPlan& plan,
                       const std::vector<Truth>& truths) {
  for (const OutputFile& file : plan.files) {
    std::filesystem::create_directories((directory / file.name).parent_path());
    write_file(directory / file.name, file_bytes(file, truths));
  }
}

}  // namespace accel::ckpt::testing
