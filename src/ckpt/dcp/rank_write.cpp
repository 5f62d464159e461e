#include "ckpt/dcp/rank_write.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/error_context.hpp"

namespace accel::ckpt {

FileSummary write_dcp_rank(const std::filesystem::path& directory, const DcpRankPlan& plan,
                           const PayloadSource& payload) {
  SummedFile file(directory / plan.file);
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const PlannedItem& planned = plan.items[i];
    file.append_zeros(planned.record_offset - file.size());
    file.append(dcp_item_record(plan, i));
    file.append_zeros(planned.offset - file.size());
    with_context([&] { return fmt::format("'{}' in {}", fqn_of(planned.item.path), plan.file); },
                 [&] { dcp_archive(planned.item).write(file, [&](std::size_t) { return payload(i); }); });
  }
  return file.finish();
}

}  // namespace accel::ckpt
