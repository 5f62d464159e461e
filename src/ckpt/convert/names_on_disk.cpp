#include "ckpt/convert/names_on_disk.hpp"

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/converted_checkpoint.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/model_assets.hpp"
#include "ckpt/store/run_state.hpp"

namespace accel::ckpt {

std::unique_ptr<Checkpoint> with_names_on_disk(std::unique_ptr<Checkpoint> source) {
  const std::filesystem::path file = directory_around(source->path()) / kWeightConversionsName;
  if (!std::filesystem::exists(file)) return source;
  const std::set<std::string> names = tensor_names(*source);
  if (are_adapter({names.begin(), names.end()})) return source;
  const auto context = [&] { return file.string(); };
  return with_context(context, [&] {
    const std::vector<TensorConversion> forth = parse_conversions(read_text_file(file));
    return convert_tensors(std::move(source), applicable(inverse(forth), names));
  });
}

}  // namespace accel::ckpt
