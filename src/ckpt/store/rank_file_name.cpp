#include "ckpt/store/rank_file_name.hpp"

#include <charconv>
#include <cstddef>

#include "ckpt/store/accelerate_names.hpp"

namespace accel::ckpt {
namespace {

constexpr std::string_view kMark = "rank";

bool has_ending_of_torch(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
}

/// Whether `name` has at `at` no character that would make a longer word or number of what stands beside it.
bool is_boundary(std::string_view name, std::size_t at) {
  constexpr std::string_view kSeparators = "_-.";
  return kSeparators.find(name[at]) != std::string_view::npos;
}

/// The name if the "rank" at `mark` has a number.
std::optional<RankFileName> name_with_rank_at(std::string_view name, std::size_t mark) {
  if (mark > 0 && !is_boundary(name, mark - 1)) return std::nullopt;
  std::size_t at = mark + kMark.size();
  if (at < name.size() && (name[at] == '_' || name[at] == '-')) ++at;
  int rank = -1;
  const char* const begin = name.data() + at;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), rank);
  const std::size_t behind = at + static_cast<std::size_t>(end - begin);
  if (error != std::errc() || rank < 0 || behind >= name.size() || !is_boundary(name, behind))
    return std::nullopt;
  return RankFileName{std::string(name.substr(0, at)), rank, std::string(name.substr(behind))};
}

}  // namespace

bool RankFileName::is_accelerates() const {
  return after == ".bin" && before.ends_with("_rank") &&
         (before.starts_with(kModelStem) || before.starts_with(kOptimizerStem));
}

std::optional<RankFileName> parse_rank_file_name(std::string_view name) {
  if (!has_ending_of_torch(name)) return std::nullopt;
  for (std::size_t mark = name.rfind(kMark); mark != std::string_view::npos;
       mark = mark == 0 ? std::string_view::npos : name.rfind(kMark, mark - 1)) {
    if (auto parsed = name_with_rank_at(name, mark)) return parsed;
  }
  return std::nullopt;
}

}  // namespace accel::ckpt
