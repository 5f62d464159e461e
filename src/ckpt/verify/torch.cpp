#include <fmt/format.h>

#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Checks every tensor that a pickle describes, wherever it stands in the pickle.
class TensorWalk {
 public:
  TensorWalk(const ArchivePlace& place, ArchiveCheck& archive) : place_(place), archive_(archive) {}

  std::uint64_t run(const pickle::Value& root) {
    visit(root);
    return tensors_;
  }

 private:
  void visit(const pickle::Value& value) {
    if (is_tensor(value)) return;
    if (const auto* pairs = pickle::mapping_of(value)) {
      visit_pairs(*pairs);
    } else if (const auto* items = pickle::sequence_of(value)) {
      visit_all(*items);
    } else if (const auto* object = value.get<pickle::Object>()) {
      visit_all((*object)->args);
      visit_all((*object)->states);
      visit_all((*object)->items);
      visit_pairs((*object)->pairs);
    }
  }

  bool is_tensor(const pickle::Value& value) {
    try {
      const std::optional<TorchTensor> tensor = torch_tensor_of(value);
      if (!tensor) return false;
      // A tensor without elements may have no storage, and one of the meta device has none.
      const bool stored = !tensor->storage_key.empty() && !tensor->on_meta;
      if (stored && checked_.insert(tensor->storage_key).second) check_storage(*tensor, place_, archive_);
    } catch (const Error& e) {
      // An Error of another kind is about a tensor that accel does not read: that is not a defect.
      if (e.kind() != ErrorKind::kCorrupt) return true;
      archive_.findings.push_back({FindingKind::kBroken, place_.file, place_.tensor, 0, 0, e.message()});
    }
    ++tensors_;
    return true;
  }

  void visit_all(const pickle::Values& values) {
    for (const pickle::Value& value : values) visit(value);
  }
  void visit_pairs(const pickle::Pairs& pairs) {
    for (const auto& [key, value] : pairs) visit(value);
  }

  const ArchivePlace& place_;
  ArchiveCheck& archive_;
  std::set<std::string> checked_;
  std::uint64_t tensors_ = 0;
};

}  // namespace

VerifyJob verify_torch(const fs::path& path, std::string_view kind) {
  const File file = File::open_read(path);
  const ArchivePlace place{path.filename().string(), "", 0, file.size()};
  VerifyJob job = job_for(path, kind, place.length);
  ArchiveCheck archive = check_archive(file, place);
  check_has_pickle(place, archive);
  if (archive.pickle) job.result.tensors = TensorWalk(place, archive).run(*archive.pickle);
  job.sums = std::move(archive.sums);
  job.result.findings = std::move(archive.findings);
  return job;
}

}  // namespace accel::ckpt
