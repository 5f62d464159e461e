#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {

VerifyJob verify_pt2(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  const ArchivePlace place{path.filename().string(), "", 0, file.size()};
  VerifyJob job = job_for(path, name_of(Kind::kPt2), place.length);
  ArchiveCheck archive = check_archive(file, place);
  job.sums = std::move(archive.sums);
  job.result.findings = std::move(archive.findings);
  if (!job.result.findings.empty()) return job;
  try {
    job.result.tensors = open_checkpoint(path)->tensors().size();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kCorrupt) {
      job.result.findings.push_back({FindingKind::kBroken, place.file, "", 0, 0, e.message()});
    } else {
      // An Error of another kind is about a model that accel does not read: that is not a defect.
      job.result.notes.push_back(e.message());
    }
  }
  return job;
}

}  // namespace accel::ckpt
