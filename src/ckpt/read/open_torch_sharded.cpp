#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/torch_listing.hpp"
#include "ckpt/store/weight_index.hpp"

namespace accel::ckpt {

std::unique_ptr<Checkpoint> open_sharded_torch(const std::filesystem::path& directory) {
  const std::vector<std::string> indexes = index_names_in(directory, ".bin");
  if (indexes.size() != 1) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' has {} files *.bin.index.json", directory.string(), indexes.size()))
        .hint("put each model in a directory of its own");
  }
  const WeightIndex index = read_weight_index(directory / indexes.front());
  Listing listing{Kind::kTorchSharded, directory, directory, {}, {}, {}};
  FileCache files(directory);
  for (const std::string& name : index.file_names()) {
    const File& file = files.open(name);
    Listing part;
    with_context("", file.path().string(),
                 [&] { add_torch_file(part, name, TorchFile(FileWindow(file, 0, file.size()))); });
    std::vector<std::string> names;
    for (const ListedTensor& tensor : part.tensors) names.push_back(fqn_of(tensor.path));
    std::sort(names.begin(), names.end());
    check_weight_index(index, name, names);
    std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(listing.tensors));
    std::move(part.objects.begin(), part.objects.end(), std::back_inserter(listing.objects));
  }
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
