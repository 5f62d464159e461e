#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/torch_listing.hpp"
#include "ckpt/torchscript/modules.hpp"

namespace accel::ckpt {
namespace {

// Lists the tensors of an archive in the order of state_dict(): a module's parameters, then its buffers, then
// those of its submodules, each in the order of the attributes.
class Lister {
 public:
  Lister(Listing& listing, std::string file, const TorchFile& archive)
      : listing_(listing), file_(std::move(file)), archive_(archive) {}

  void list(const ScriptModules& model) {
    for_each_module(model, [&](const std::string& path, const ScriptModule& module) {
      for (const bool parameters : {true, false}) {
        for (const ScriptAttribute& attribute : module.attributes) {
          if (attribute.kind != ScriptAttribute::Kind::kTensor) continue;
          if (!(parameters ? module.is_parameter(attribute) : module.is_buffer(attribute))) continue;
          add_tensor(path.empty() ? attribute.name : path + "." + attribute.name,
                     model.tensors[attribute.index]);
        }
      }
    });
  }

 private:
  // The state dict is flat: a path has one key, with dots in it.
  void add_tensor(std::string name, const TorchTensor& tensor) {
    ListedTensor listed{{std::move(name)}, tensor.dtype, tensor.shape, {}};
    listed.obstacle = tensor.obstacle;
    if (tensor.obstacle.empty()) listed.extents = extents_of(file_, archive_, tensor);
    listing_.tensors.push_back(std::move(listed));
  }

  Listing& listing_;
  std::string file_;
  const TorchFile& archive_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_torchscript(const std::filesystem::path& path) {
  Listing listing{Kind::kTorchScript, path, parent_of(path), {}, {}, {}};
  const File file = File::open_read(path);
  with_context("", path.string(), [&] {
    const TorchFile archive(FileWindow(file, 0, file.size()));
    Lister(listing, path.filename().string(), archive).list(read_script_modules(archive));
  });
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
