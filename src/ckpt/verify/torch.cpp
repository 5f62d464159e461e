#include <fmt/format.h>

#include <functional>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/pickle/reader.hpp"
#include "ckpt/torch/legacy.hpp"
#include "ckpt/verify/absent_shards.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Checks every tensor that a pickle describes, wherever it stands in the pickle.
class TensorWalk {
 public:
  /// `check_storage` adds to the findings what is wrong with the storage of a tensor.
  TensorWalk(const ArchivePlace& place, std::vector<Finding>& findings,
             std::function<void(const TorchTensor&)> check_storage)
      : place_(place), findings_(findings), check_storage_(std::move(check_storage)) {}

  /// Returns the number of tensors.
  std::uint64_t run(const pickle::Value& root, const fs::path& file) {
    visit(root);
    absent_.report(file, findings_);
    return tensors_;
  }

 private:
  void visit(const pickle::Value& value) {
    if (is_tensor(value)) return;
    visit_inside(value);
  }

  void visit_inside(const pickle::Value& value) {
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
      if (absent_.add(name_, value)) {
        const std::uint64_t before = tensors_;
        visit_inside(value);
        tensors_ = before + 1;
        return true;
      }
      const std::optional<TorchTensor> tensor = torch_tensor_of(value);
      if (!tensor) return false;
      // A tensor without elements may have no storage, and one of the meta device has none.
      const bool stored = !tensor->storage_key.empty() && !tensor->on_meta;
      if (stored && checked_.insert(tensor->storage_key).second) check_storage_(*tensor);
      if (tensor->dtype == DType::kUnknown) {
        findings_.push_back({FindingKind::kBroken, place_.file, place_.tensor, 0, 0,
                             fmt::format("it holds {}, whose size nobody knows", tensor->obstacle)});
      }
    } catch (const Error& e) {
      // An Error of another kind is about a tensor that accel does not read: that is not a defect.
      if (e.kind() != ErrorKind::kCorrupt) return true;
      findings_.push_back({FindingKind::kBroken, place_.file, place_.tensor, 0, 0, e.message()});
    }
    ++tensors_;
    return true;
  }

  void visit_all(const pickle::Values& values) {
    for (const pickle::Value& value : values) visit(value);
  }
  void visit_pairs(const pickle::Pairs& pairs) {
    for (const auto& [key, value] : pairs) {
      if (const auto* text = key.get<std::string>()) name_ = *text;
      visit(value);
    }
  }

  const ArchivePlace& place_;
  std::vector<Finding>& findings_;
  std::function<void(const TorchTensor&)> check_storage_;
  std::set<std::string> checked_;
  std::uint64_t tensors_ = 0;
  std::string name_;  // The last key on the way to the value.
  AbsentShards absent_;
};

// A file of torch before 1.6. The reader checks the sizes of its storages.
void verify_legacy(const FileWindow& window, const ArchivePlace& place, VerifyJob& job) {
  job.result.notes.emplace_back(
      "files of torch.save before 1.6 have no checksums: the numbers themselves cannot be verified");
  const std::optional<Error> broken = corruption_in([&] {
    const LegacyTorch file = read_legacy_torch(window);
    if (const std::uint64_t rest = window.size() - file.bytes; rest != 0)
      job.result.notes.push_back(
          fmt::format("{} bytes follow the last storage; torch passes over them", rest));
    TensorWalk walk(place, job.result.findings, [](const TorchTensor&) {});
    job.result.tensors = walk.run(pickle::parse(file.pickle), job.result.path);
  });
  if (broken) job.result.findings.push_back({FindingKind::kBroken, place.file, "", 0, 0, broken->message()});
}

}  // namespace

VerifyJob verify_torch(const fs::path& path, std::string_view kind) {
  const File file = File::open_read(path);
  const ArchivePlace place{path.filename().string(), "", 0, file.size()};
  VerifyJob job = job_for(path, kind, place.length);
  if (const FileWindow window(file, 0, place.length); looks_like_legacy_torch(window)) {
    verify_legacy(window, place, job);
    return job;
  }
  ArchiveCheck archive = check_archive(file, place);
  check_has_pickle(place, archive);
  if (archive.pickle) {
    TensorWalk walk(place, archive.findings,
                    [&](const TorchTensor& tensor) { check_storage(tensor, place, archive); });
    job.result.tensors = walk.run(*archive.pickle, path);
  }
  job.sums = std::move(archive.sums);
  job.result.findings = std::move(archive.findings);
  return job;
}

}  // namespace accel::ckpt
