#include "data/arrow/arrow_dataset.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/io/endian.hpp"
#include "data/files/data_file.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStateFile = "state.json";
constexpr const char* kSplitsFile = "dataset_dict.json";
constexpr std::uint64_t kMostJsonBytes = std::uint64_t{64} << 20;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Calls `use` with a document that datasets wrote. What is wrong with it is an Error of kind kUsage.
template <class Use>
void use_document(const fs::path& path, const Use& use) {
  try {
    use_json_file(path, kMostJsonBytes, use);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    throw Error(ErrorKind::kUsage, error.message()).hint("save the dataset again with save_to_disk");
  }
}

[[noreturn]] void refuse_splits(const fs::path& directory) {
  std::vector<std::string> splits;
  use_document(directory / kSplitsFile,
               [&](const json& document) { splits = document.at("splits").get<std::vector<std::string>>(); });
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' has the splits {}", directory.string(), fmt::join(splits, ", ")))
      .hint(fmt::format("name the directory of one, such as '{}'",
                        (directory / (splits.empty() ? "train" : splits.front())).string()));
}

std::vector<std::string> files_of_dataset(const fs::path& directory) {
  if (is_there(directory / kSplitsFile)) refuse_splits(directory);
  if (!is_there(directory / kStateFile)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is a directory without {}, so not one that save_to_disk of the package "
                            "datasets wrote",
                            directory.string(), kStateFile))
        .hint("name a directory of save_to_disk, or Arrow files, such as 'data/*.arrow'");
  }
  std::vector<std::string> files;
  use_document(directory / kStateFile, [&](const json& document) {
    for (const char* key : {"_indices_data_files", "_indices_files"}) {
      if (document.value(key, json::array()).empty()) continue;
      throw Error(ErrorKind::kUsage, "the dataset selects its rows by indices in a file of their own")
          .hint("save its rows with load_from_disk(path).flatten_indices().save_to_disk(...)");
    }
    for (const json& file : document.at("_data_files")) {
      const auto name = file.at("filename").get<std::string>();
      if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
        throw Error(ErrorKind::kUsage, fmt::format("'{}' is not the name of a file in the directory", name));
      if (!is_there(directory / name)) {
        throw Error(ErrorKind::kUsage, fmt::format("the file '{}' that it names is not there", name))
            .hint("copy the whole directory");
      }
      files.push_back((directory / name).string());
    }
    if (files.empty()) throw Error(ErrorKind::kUsage, "the dataset has no rows");
  });
  return files;
}

}  // namespace

bool is_saved_dataset(const std::string& pattern) {
  try {
    const fs::path first = data_files(pattern).front();
    return is_there(first / kStateFile) || is_there(first / kSplitsFile);
  } catch (const Error&) {
    return false;  // Nothing is there yet.
  }
}

bool is_arrow(const std::string& pattern) {
  const std::string first = data_files(pattern).front();
  if (is_directory(first)) return true;
  const DataFile file(first);
  std::array<std::byte, 6> bytes{};
  if (file.size() < bytes.size()) return false;
  file.read(0, bytes);
  const std::string_view text = ckpt::text_of(bytes);
  return text == "ARROW1" || text.starts_with("\xff\xff\xff\xff");
}

std::vector<std::string> arrow_files(const std::string& pattern) {
  std::vector<std::string> files;
  for (const std::string& path : data_files(pattern)) {
    if (!is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> its = files_of_dataset(path);
    files.insert(files.end(), its.begin(), its.end());
  }
  allow_data_files(files.size());
  return files;
}

}  // namespace accel
