#include "ckpt/verify/job.hpp"

namespace accel::ckpt {

VerifyJob job_for(const std::filesystem::path& file, std::string_view kind, std::uint64_t bytes) {
  VerifyJob job;
  job.result.path = file;
  job.result.kind = kind;
  job.result.files = 1;
  job.result.bytes = bytes;
  return job;
}

}  // namespace accel::ckpt
