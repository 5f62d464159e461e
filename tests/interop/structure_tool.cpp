// structure-tool MODEL.pt [CLASS ...]: the model's structure as JSON; `cross_unit` is relative to units of
// the classes.

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "structure/archive_model.hpp"

namespace {

using namespace accel;
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

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    const ArchiveModel archive = ArchiveModel::open(words.at(0));
    const Classes classes(words.begin() + 1, words.end());
    std::puts(to_json(archive.structure(modules_of(archive.structure({}), classes))).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
