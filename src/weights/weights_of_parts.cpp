#include "weights/weights_of_parts.hpp"

#include "ckpt/tensor/dtype.hpp"

namespace accel {

void WeightsOfParts::read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) {
  const ParameterInfo& parameter = structure_.parameters.at(index);
  if (!parameter.part) return whole_->read_parameter(index, begin, out);
  const std::size_t item = ckpt::item_bytes(ckpt::dtype_of_torch_name(parameter.dtype).value());
  const auto end = begin + static_cast<std::int64_t>(out.size() / item);
  for (const PartRun& run : runs_of_part(parameter.shape, *parameter.part, begin, end)) {
    whole_->read_parameter(index, run.in_whole,
                           out.subspan(static_cast<std::size_t>(run.in_part - begin) * item,
                                       static_cast<std::size_t>(run.count) * item));
  }
}

}  // namespace accel
