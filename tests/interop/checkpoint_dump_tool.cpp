// Opens a checkpoint of any kind and writes every tensor's bytes to OUT/<index>, and what it found to
// standard output. Usage: checkpoint-dump-tool CHECKPOINT OUT [model|optimizer|any]

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace {

using namespace accel;
using namespace accel::ckpt;
using Json = nlohmann::ordered_json;

Json path_of(const StatePath& path) {
  Json keys = Json::array();
  for (const PathKey& key : path) std::visit([&](const auto& k) { keys.push_back(k); }, key);
  return keys;
}

void dump_tensor(Checkpoint& checkpoint, TensorReader& reader, std::size_t i,
                 const std::filesystem::path& out) {
  checkpoint.check_coverage(i);
  StoredTensor stored = checkpoint.locate(i);
  const std::int64_t numel = checked_numel(stored.shape);
  const std::uint64_t item = item_bytes(stored.dtype);
  File file = File::create_new(out / std::to_string(i));
  // In several reads, as a merge with little memory does it.
  const std::int64_t step = std::max<std::int64_t>(1, numel / 3);
  std::vector<std::byte> bytes;
  for (std::int64_t at = 0; at < numel; at += step) {
    const std::int64_t end = std::min(numel, at + step);
    bytes.resize(static_cast<std::size_t>(end - at) * item);
    reader.read_range(stored, at, end, bytes);
    file.write_at(static_cast<std::uint64_t>(at) * item, bytes);
  }
}

Json dump(const std::filesystem::path& path, const std::filesystem::path& out) {
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
  TensorReader reader(checkpoint->directory());
  Json document{{"kind", name_of(checkpoint->kind())}, {"path", path.string()}, {"tensors", Json::array()}};
  for (std::size_t i = 0; i < checkpoint->tensors().size(); ++i) {
    const TensorEntry& entry = checkpoint->tensors()[i];
    Json tensor{{"name", entry.name},   {"path", path_of(entry.path)}, {"dtype", torch_name(entry.dtype)},
                {"shape", entry.shape}, {"pieces", entry.pieces},      {"copies", entry.copies}};
    try {
      dump_tensor(*checkpoint, reader, i, out);
    } catch (const Error& e) {
      tensor["error"] = e.message();
    }
    document["tensors"].push_back(std::move(tensor));
  }
  document["objects"] = Json::object();
  for (std::size_t i = 0; i < checkpoint->objects().size(); ++i) {
    document["objects"][checkpoint->objects()[i].name] = pickle::describe(checkpoint->read_object(i));
  }
  return document;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string want = argc > 3 ? argv[3] : "any";
  try {
    std::filesystem::create_directories(argv[2]);
    const Want wanted = want == "model" ? Want::kModel : want == "optimizer" ? Want::kOptimizer : Want::kAny;
    std::cout << dump(find_checkpoint(argv[1], wanted).path, argv[2]).dump() << '\n';
  } catch (const Error& e) {
    std::cerr << e.message() << '\n' << e.advice() << '\n';
    return static_cast<int>(exit_code_of(e.kind()));
  }
}
