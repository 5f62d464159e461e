#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Every tensor that a pickle describes, wherever it is in it.
class TensorWalk {
 public:
  TensorWalk(const ArchivePlace& place, ArchiveCheck& archive) : place_(place), archive_(archive) {
    for (const ZipEntry& entry : archive.entries) records_[entry.name] = &entry;
  }

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
      check_storage(*tensor);
    } catch (const Error& e) {
      // Of another kind: a tensor that accel cannot read, which says nothing against it.
      if (e.kind() != ErrorKind::kCorrupt) return true;
      archive_.findings.push_back({FindingKind::kBroken, place_.file, place_.tensor, 0, 0, e.message()});
    }
    ++tensors_;
    return true;
  }

  void check_storage(const TorchTensor& tensor) {
    // A tensor without elements may have no storage, and one of the meta device has none.
    if (tensor.storage_key.empty() || tensor.on_meta) return;
    const std::string name = "data/" + tensor.storage_key;
    if (!checked_.insert(tensor.storage_key).second) return;
    const auto record = records_.find(archive_.root + "/" + name);
    std::string text;
    if (record == records_.end()) {
      text = fmt::format("a tensor's elements are in record '{}', which is not there", name);
    } else if (record->second->size < tensor.storage_bytes) {
      text = fmt::format("record '{}' has {} bytes, the pickle says {}", name, record->second->size,
                         tensor.storage_bytes);
    }
    if (text.empty()) return;
    archive_.findings.push_back({FindingKind::kMismatch, place_.file, place_.tensor, 0, 0, std::move(text)});
  }

  void visit_all(const pickle::Values& values) {
    for (const pickle::Value& value : values) visit(value);
  }
  void visit_pairs(const pickle::Pairs& pairs) {
    for (const auto& [key, value] : pairs) visit(value);
  }

  const ArchivePlace& place_;
  ArchiveCheck& archive_;
  std::map<std::string_view, const ZipEntry*> records_;
  std::set<std::string> checked_;
  std::uint64_t tensors_ = 0;
};

}  // namespace

VerifyJob verify_torch(const fs::path& path, std::string_view kind) {
  const File file = File::open_read(path);
  const ArchivePlace place{path.filename().string(), "", 0, file.size()};
  VerifyJob job = job_for(path, kind, place.length);
  ArchiveCheck archive = check_archive(file, place);
  if (archive.pickle) {
    job.result.tensors = TensorWalk(place, archive).run(*archive.pickle);
  } else if (!archive.entries.empty() && archive.find("data.pkl") == nullptr) {
    archive.findings.push_back({FindingKind::kMismatch, place.file, "", 0, 0, "it has no record 'data.pkl'"});
  }
  for (RecordSum& sum : archive.sums) {
    job.sums.push_back({{path, sum.begin, sum.length, sum.crc32},
                        {FindingKind::kChecksum, place.file, "", sum.begin, sum.begin + sum.length,
                         fmt::format("record '{}'", sum.name)}});
  }
  job.result.findings = std::move(archive.findings);
  return job;
}

}  // namespace accel::ckpt
