#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/settings/settings.hpp"

namespace accel::config {
namespace {

bool is_built(const Field& field, const Setting& setting) {
  if (field.built == kEverything || std::holds_alternative<std::monostate>(setting.value)) return true;
  const std::vector<std::string> built = split(field.built, '|');
  return std::find(built.begin(), built.end(), text_of(setting.value)) != built.end();
}

/// The system that a value of the field asks for; empty if there is none.
std::string system_of(const Field& field, const Setting& setting) {
  const std::string start = text_of(setting.value) + "=";
  for (const std::string& part : split(field.system, '|')) {
    if (part.starts_with(start)) return part.substr(start.size());
  }
  return std::string(field.system);
}

/// One machine needs no rendezvous, so that its kind does not matter.
bool is_of_no_use(const Field& field, const Settings& settings) {
  return field.path == "rdzv_backend" && settings.get<std::int64_t>("num_machines").value_or(1) == 1;
}

}  // namespace

void check_built(const Settings& settings, Reader reader) {
  const Setting* first = nullptr;
  const Field* first_field = nullptr;
  const auto place = [](const Setting& s) {
    return std::tuple(s.origin.layer, s.origin.line, s.origin.column);
  };
  for (const auto& [path, setting] : settings.map()) {
    const Field* field = find_field(path);
    if (field == nullptr || (reader == Reader::kLauncher && field->reader == Reader::kEngine)) continue;
    if (is_built(*field, setting) || is_of_no_use(*field, settings)) continue;
    if (first == nullptr || place(setting) < place(*first))
      std::tie(first, first_field) = std::tuple(&setting, field);
  }
  if (first == nullptr) return;
  const Field& field = *first_field;
  const std::string asked =
      fmt::format("{}: '{}: {}'", text_of(first->origin), field.path, text_of(first->value));
  const std::string system = system_of(field, *first);
  Error error(ErrorKind::kUsage,
              system.empty() ? fmt::format("{} is not supported yet", asked)
                             : fmt::format("{} asks for {}, which accel does not have", asked, system));
  if (field.built.empty()) throw std::move(error).hint("leave the key out");
  throw std::move(error).hint(fmt::format("what works: {}", fmt::join(split(field.built, '|'), ", ")));
}

}  // namespace accel::config
