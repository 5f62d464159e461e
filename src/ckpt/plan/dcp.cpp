#include "ckpt/plan/dcp.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/plan/torch.hpp"

namespace accel::ckpt {
namespace {

// The items that a rank writes, and for each of them the item of the state that it is a part of.
struct RankItems {
  std::vector<DcpItem> items;
  std::vector<const OutputItem*> sources;  // A nullptr stands for an object.
};

void add_chunk(RankItems& rank, const OutputItem& item, Box box) {
  rank.items.push_back({item.path, TensorChunk{item.dtype, item.shape, std::move(box)}});
  rank.sources.push_back(&item);
}

void split(const OutputItem& item, std::vector<RankItems>& ranks) {
  if (item.shape.empty() || checked_numel(item.shape) == 0) {
    add_chunk(ranks.front(), item, Box::whole(item.shape));
    return;
  }
  const auto world = static_cast<std::int64_t>(ranks.size());
  const std::int64_t rows = item.shape.front();
  const std::int64_t share = rows / world + (rows % world != 0 ? 1 : 0);
  for (std::int64_t begin = 0, r = 0; begin < rows; begin += share, ++r) {
    Box box = Box::whole(item.shape);
    box.offsets.front() = begin;
    box.sizes.front() = std::min(share, rows - begin);
    add_chunk(ranks[static_cast<std::size_t>(r)], item, std::move(box));
  }
}

bool has_tensor(const pickle::Value& value) {
  return value.get<pickle::Persistent>() != nullptr || pickle::any_part(value, has_tensor);
}

OutputFile plan_file(const DcpRankPlan& plan, const std::vector<const OutputItem*>& sources) {
  OutputFile file;
  file.name = plan.file;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const PlannedItem& planned = plan.items[i];
    std::string record = dcp_item_record(plan, i);
    file.segments.push_back({planned.record_offset, record.size(), std::move(record)});
    std::vector<OutputContent> storages;
    if (sources[i] != nullptr) {
      storages.push_back(content_of(*sources[i], {std::get<TensorChunk>(planned.item.content).box}));
    }
    append_torch_archive(file, planned.offset, dcp_archive(planned.item), std::move(storages));
  }
  return file;
}

}  // namespace

OutputPlan plan_dcp(const OutputState& state, int ranks) {
  check_torch_dtypes(state);
  if (ranks < 1) throw Error(ErrorKind::kUsage, fmt::format("{} ranks; at least 1 is needed", ranks));
  std::vector<RankItems> by_rank(static_cast<std::size_t>(ranks));
  for (const OutputItem& item : state.tensors) split(item, by_rank);
  for (const OutputObject& object : state.objects) {
    if (has_tensor(object.value)) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("'{}' contains a tensor in a place where accel does not look for tensors",
                              fqn_of(object.path)));
    }
    by_rank.front().items.push_back({object.path, object.value});
    by_rank.front().sources.push_back(nullptr);
  }
  std::vector<DcpRankPlan> plans;
  OutputPlan output;
  for (int rank = 0; rank < ranks; ++rank) {
    RankItems& items = by_rank[static_cast<std::size_t>(rank)];
    plans.push_back(plan_dcp_rank(rank, std::move(items.items)));
    output.files.push_back(plan_file(plans.back(), items.sources));
  }
  output.files.push_back(text_file(".metadata", encode_dcp_metadata(plans)));
  return output;
}

}  // namespace accel::ckpt
