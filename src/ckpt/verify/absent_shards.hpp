#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/verify/finding.hpp"

namespace accel::ckpt {

/// The shards of ShardedTensors that a file lacks, by the ranks whose files have them.
class AbsentShards {
 public:
  /// Notes the shards that are absent if `value` is a pickled ShardedTensor. Returns whether it is one.
  /// Throws Error (kCorrupt) if it contradicts itself.
  bool add(const std::string& name, const pickle::Value& value);

  /// Adds a finding for each rank whose shards are in no file beside `file`.
  void report(const std::filesystem::path& file, std::vector<Finding>& findings) const;

 private:
  std::map<std::int64_t, std::vector<std::string>> tensors_of_rank_;  // -1: the rank is not known.
};

}  // namespace accel::ckpt
