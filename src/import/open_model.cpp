#include "import/open_model.hpp"

#include <utility>

#include "import/imported_structure.hpp"

namespace accel {

OpenedModel open_model(const std::filesystem::path& path) {
  if (is_pt2(path)) {
    ImportedStructure imported = import_structure(path);
    return {ArchiveModel::from_bytes(std::move(imported.file), path), imported.has_values,
            std::move(imported.signature)};
  }
  ArchiveModel archive = ArchiveModel::open(path);
  const bool has_values = archive.has_values();
  return {std::move(archive), has_values, std::nullopt};
}

}  // namespace accel
