#include "ckpt/io/foreign_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "ckpt/io/endian.hpp"

namespace accel::ckpt {
namespace {

using namespace std::string_view_literals;

struct Start {
  std::string_view bytes;
  const char* what;
  const char* advice;
};

constexpr const char* kConvert =
    "load it with the program that wrote it, and save the state dict as safetensors or by torch.save";

constexpr Start kStarts[] = {
    {"version https://git-lfs"sv, "is a pointer of Git LFS, not the file itself",
     "`git lfs pull` fetches the file"},
    {"<!doctype html"sv, "is a page of HTML, as a failed download leaves it", "download the file again"},
    {"<html"sv, "is a page of HTML, as a failed download leaves it", "download the file again"},
    {"\x00\x05\x16\x07"sv, "is an AppleDouble file, in which macOS keeps attributes of another file",
     "remove it; the data are in the file without '._'"},
    {"GGUF"sv, "is a GGUF file of llama.cpp", "use the model from which it was made"},
    {"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file, as Keras writes them", kConvert},
    {"\x1f\x8b"sv, "is compressed with gzip", "unpack it first, with gunzip or tar -xzf"},
};

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return text;
}

/// The name of the first record of a zip archive, which stands behind 30 bytes.
std::string_view first_record(std::string_view start) {
  constexpr std::size_t kNameAt = 30;
  if (!start.starts_with("PK\x03\x04") || start.size() < kNameAt) return {};
  const auto bytes = std::as_bytes(std::span(start));
  return start.substr(kNameAt, get_uint(bytes, 26, 2));
}

}  // namespace

std::optional<ForeignFormat> foreign_format(const File& file) {
  constexpr std::uint64_t kLooked = 512;
  std::string start(std::min(file.size(), kLooked), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  const std::string lower =
      in_lower_case(start.substr(std::min(start.find_first_not_of(" \r\n\t"), start.size())));
  for (const Start& known : kStarts) {
    const bool is_page = known.bytes.front() == '<';
    if ((is_page ? lower : start).starts_with(known.bytes)) return ForeignFormat{known.what, known.advice};
  }
  // A message of protobuf: the version of ONNX, then the producer's name or the graph.
  constexpr char kNewestOnnx = 32;
  if (start.size() > 8 && start[8] != '{' && start[0] == 8 && start[1] > 0 && start[1] < kNewestOnnx &&
      (start[2] == 0x12 || start[2] == 0x3a))
    return ForeignFormat{"is a model of ONNX", "use the model from which it was exported"};
  const std::string_view record = first_record(start);
  if (record.ends_with(".npy")) return ForeignFormat{"is an archive of NumPy (.npz)", kConvert};
  if (record == "metadata.json" || record == "config.json")
    return ForeignFormat{"is an archive of Keras (.keras)", kConvert};
  return std::nullopt;
}

void refuse_foreign_format(const File& file) {
  if (const auto format = foreign_format(file)) {
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}' {}", file.path().string(), format->what))
        .hint(format->advice);
  }
}

}  // namespace accel::ckpt
