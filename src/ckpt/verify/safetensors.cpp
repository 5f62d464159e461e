#include <fmt/format.h>

#include <string>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

void check_readable(const SafetensorsEntry& entry, const std::string& file, VerifyJob& job) {
  if (entry.obstacle.empty()) return;
  if (entry.dtype != DType::kUnknown) {
    job.result.notes.push_back(
        fmt::format("'{}' is {}: torch and accel do not read it", entry.name, entry.obstacle));
    return;
  }
  job.result.findings.push_back(
      {FindingKind::kBroken, file, entry.name, 0, 0,
       fmt::format("is {}, so nothing says whether its size is right", entry.obstacle)});
}

}  // namespace

VerifyJob verify_safetensors(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  VerifyJob job = job_for(path, "safetensors", file.size());
  job.result.notes.emplace_back("safetensors has no checksums: the numbers themselves cannot be verified");
  const std::optional<Error> broken = corruption_in([&] {
    const SafetensorsHeader header = read_safetensors_header(file);
    job.result.tensors = header.entries.size();
    for (const SafetensorsEntry& entry : header.entries) check_readable(entry, path.filename().string(), job);
  });
  if (broken)
    job.result.findings.push_back(
        {FindingKind::kBroken, path.filename().string(), "", 0, 0, broken->message()});
  return job;
}

}  // namespace accel::ckpt
