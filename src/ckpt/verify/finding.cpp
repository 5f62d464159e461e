#include "ckpt/verify/finding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>

namespace accel::ckpt {

std::string_view name_of(FindingKind kind) {
  constexpr std::array<std::string_view, 9> kNames = {
      "missing-file", "truncated", "broken", "checksum", "mismatch", "overlap", "hole", "stale", "times"};
  static_assert(kNames.size() == static_cast<std::size_t>(FindingKind::kTimes) + 1);
  return kNames.at(static_cast<std::size_t>(kind));
}

void sort_findings(std::vector<Finding>& findings) {
  std::sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.file, a.begin, a.end, a.tensor, a.kind, a.text) <
           std::tie(b.file, b.begin, b.end, b.tensor, b.kind, b.text);
  });
  findings.erase(std::unique(findings.begin(), findings.end()), findings.end());
}

std::string to_string(const Finding& finding) {
  std::vector<std::string> where;
  if (!finding.file.empty()) where.push_back(finding.file);
  if (finding.end != 0) where.push_back(fmt::format("bytes {} to {}", finding.begin, finding.end));
  if (!finding.tensor.empty()) where.push_back(fmt::format("'{}'", finding.tensor));
  const std::string place = where.empty() ? "" : fmt::format("{}: ", fmt::join(where, ", "));
  return fmt::format("{}: {}{}", name_of(finding.kind), place, finding.text);
}

ErrorKind error_kind_of(const std::vector<Finding>& findings) {
  const bool only_missing = std::all_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.kind == FindingKind::kMissingFile || finding.kind == FindingKind::kHole ||
           finding.kind == FindingKind::kTruncated;
  });
  return only_missing ? ErrorKind::kMissing : ErrorKind::kCorrupt;
}

}  // namespace accel::ckpt
