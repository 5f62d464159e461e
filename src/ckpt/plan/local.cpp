#include "ckpt/plan/local.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/plan/torch.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {
namespace {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

Range range_of(std::int64_t numel, int rank, int ranks) {
  const std::int64_t share = numel / ranks + (numel % ranks != 0 ? 1 : 0);
  const auto from = [&](std::int64_t r) { return std::min(numel, checked_mul(share, r)); };
  return {from(rank), from(rank + 1)};
}

OutputFile plan_bin(const OutputState& state, int rank, int ranks, const std::string& stem) {
  pickle::Writer writer;
  std::vector<std::size_t> storage_of_item;
  std::vector<std::uint64_t> bytes;
  std::vector<OutputContent> contents;
  writer.begin_dict();
  for (const OutputItem& item : state.tensors) {
    const std::int64_t numel = checked_numel(item.shape);
    const Range range = range_of(numel, rank, ranks);
    const std::int64_t count = range.end - range.begin;
    const OutputItem* first = item.tied_to ? &state.tensors.at(*item.tied_to) : nullptr;
    if (first != nullptr && first->dtype == item.dtype && checked_numel(first->shape) == numel) {
      storage_of_item.push_back(storage_of_item.at(*item.tied_to));
    } else {
      storage_of_item.push_back(bytes.size());
      bytes.push_back(checked_nbytes(Dims{count}, item_bytes(item.dtype)));
      contents.push_back(count == 0 ? OutputContent(std::string())
                                    : content_of(item, boxes_of_range(item.shape, range.begin, range.end)));
    }
    writer.put(fqn_of(item.path));
    writer.put(pickle_of_tensor(item.dtype, {count}, std::to_string(storage_of_item.back())));
  }
  writer.end_dict();
  OutputFile file;
  file.name = stem + ".bin";
  append_torch_archive(file, 0, TorchArchive(writer.finish(), bytes, stem), std::move(contents));
  return file;
}

OutputFile plan_json(const OutputState& state, int rank, int ranks, const std::string& stem) {
  using Json = nlohmann::ordered_json;
  // One tensor per line. The document is not one ordered_json, which searches all keys on each insertion.
  std::string text =
      fmt::format("{{\"version\": 1, \"rank\": {}, \"world_size\": {}, \"tensors\": {{", rank, ranks);
  for (const OutputItem& item : state.tensors) {
    const Range range = range_of(checked_numel(item.shape), rank, ranks);
    const Json entry{
        {"dtype", torch_name(item.dtype)}, {"shape", item.shape}, {"begin", range.begin}, {"end", range.end}};
    const Json name = fqn_of(item.path);
    text += fmt::format("{}\n  {}: {}", &item == state.tensors.data() ? "" : ",",
                        name.dump(-1, ' ', false, Json::error_handler_t::replace), entry.dump());
  }
  text += "\n}}\n";
  return text_file(stem + ".json", std::move(text));
}

}  // namespace

OutputPlan plan_local(const OutputState& state, int ranks, const std::string& base) {
  check_torch_dtypes(state);
  if (ranks < 1) throw Error(ErrorKind::kUsage, fmt::format("{} ranks; at least 1 is needed", ranks));
  if (!state.objects.empty()) {
    throw Error(
        ErrorKind::kFailure,
        fmt::format(
            "a local checkpoint holds only tensors, and '{}' is not a tensor{}",
            fqn_of(state.objects.front().path),
            state.objects.size() > 1 ? fmt::format(", nor are {} more", state.objects.size() - 1) : ""));
  }
  OutputPlan plan;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string stem = fmt::format("{}_rank{}", base, rank);
    plan.files.push_back(plan_bin(state, rank, ranks, stem));
    plan.files.push_back(plan_json(state, rank, ranks, stem));
  }
  return plan;
}

}  // namespace accel::ckpt
