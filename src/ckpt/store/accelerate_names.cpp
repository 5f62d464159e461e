#include "ckpt/store/accelerate_names.hpp"

#include <fmt/format.h>

#include <charconv>

namespace accel::ckpt {

std::string file_stem(std::string_view stem, int index) {
  return index == 0 ? std::string(stem) : sharded_directory(stem, index);
}

std::string sharded_directory(std::string_view stem, int index) { return fmt::format("{}_{}", stem, index); }

std::optional<RankFileName> parse_rank_file_name(std::string_view name) {
  constexpr std::string_view kMark = "_rank";
  constexpr std::string_view kEnding = ".bin";
  if (!name.ends_with(kEnding)) return std::nullopt;
  name.remove_suffix(kEnding.size());
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return std::nullopt;
  const std::string_view stem = name.substr(0, mark);
  const std::string_view digits = name.substr(mark + kMark.size());
  if (!stem.starts_with(kModelStem) && !stem.starts_with(kOptimizerStem)) return std::nullopt;
  int rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size() || rank < 0) return std::nullopt;
  return RankFileName{std::string(stem), rank};
}

}  // namespace accel::ckpt
