// structure-tool MODEL.pt [CLASS ...]: the model's structure as JSON, as it is read without
// libtorch; `cross_unit` is relative to units of the classes. Exit code 1 if libtorch gives another
// structure, with units of no class, of each that the model has, or of all.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "structure/archive_model.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/model/model_file.hpp"

namespace {

using namespace accel;
using namespace accel::train;
using Json = nlohmann::ordered_json;
using Classes = std::unordered_set<std::string>;

Json to_json(const ModelStructure& model) {
  Json document = {{"modules", Json::array()}, {"parameters", Json::array()}};
  for (const ModuleInfo& module : model.modules)
    document["modules"].push_back({module.name, module.class_name});
  for (const ParameterInfo& parameter : model.parameters) {
    document["parameters"].push_back({{"fqns", parameter.fqns},
                                      {"shape", parameter.shape},
                                      {"dtype", parameter.dtype},
                                      {"requires_grad", parameter.requires_grad},
                                      {"cross_unit", parameter.cross_unit}});
  }
  return document;
}

std::unordered_set<std::string> modules_of(const ModelStructure& model, const Classes& classes) {
  std::unordered_set<std::string> names;
  for (const ModuleInfo& module : model.modules) {
    if (classes.contains(module.class_name)) names.insert(module.name);
  }
  return names;
}

bool same_as_libtorch(const ArchiveModel& archive, ModelFile& file, const Classes& units) {
  const std::unordered_set<std::string> modules = modules_of(archive.structure({}), units);
  const Json ours = to_json(archive.structure(modules));
  const Json theirs = to_json(file.structure(cross_unit_reads(file.module(), modules)));
  if (ours == theirs) return true;
  std::fprintf(stderr, "%s\nlibtorch gives\n%s\n", ours.dump().c_str(), theirs.dump().c_str());
  return false;
}

int run(const std::string& path, const Classes& classes) {
  const ArchiveModel archive = ArchiveModel::open(path);
  const ModelStructure plain = archive.structure({});
  std::puts(to_json(archive.structure(modules_of(plain, classes))).dump().c_str());
  Classes all;
  for (const ModuleInfo& module : plain.modules) {
    if (module.class_name != plain.modules.front().class_name) all.insert(module.class_name);
  }
  std::vector<Classes> cases = {{}, all};
  for (const std::string& name : all) cases.push_back({name});
  ModelFile file = ModelFile::open(path);
  const bool same = std::all_of(cases.begin(), cases.end(),
                                [&](const Classes& units) { return same_as_libtorch(archive, file, units); });
  return same ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    return run(words.at(0), {words.begin() + 1, words.end()});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
