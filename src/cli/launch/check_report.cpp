#include "cli/launch/check_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "cli/launch/group_report.hpp"
#include "data/needed_fields.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string source_of(const config::ResolvedValue& row) {
  std::string source = row.origin ? config::text_of(*row.origin) : "default";
  if (row.written) source += fmt::format(", written as {}", *row.written);
  return source;
}

void print_list(const char* title, const std::vector<std::string>& texts, Results& out) {
  if (texts.empty()) return;
  out.lines({"", title, ""});
  for (const std::string& text : texts) out.line("  " + text);
}

/// "1 warning".
std::string counted(std::integral auto count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

/// "gpt.yaml is valid, with 1 warning and 2 settings without effect".
void print_verdict(const CheckReport& report, Results& out) {
  std::vector<std::string> parts;
  if (!report.warnings.empty()) parts.push_back(counted(report.warnings.size(), "warning", "warnings"));
  if (!report.without_effect.empty()) {
    parts.push_back(
        counted(report.without_effect.size(), "setting without effect", "settings without effect"));
  }
  out.verdict(report.subject + " is ", "valid", parts.empty() ? Tone::kGood : Tone::kWarning,
              fmt::format("{}{}", parts.empty() ? "" : ", with ", fmt::join(parts, " and ")));
}

void print_data(const TrainingData& data, Results& out) {
  out.line();
  out.line(fmt::format("The training data have {}, with {} per epoch; the run takes {}, {:.2f} {}",
                       counted(data.samples, "sample", "samples"),
                       counted(data.steps_per_epoch, "step", "steps"), counted(data.steps, "step", "steps"),
                       data.epochs, data.epochs == 1 ? "epoch" : "epochs"));
  if (data.divided_fields) out.line(division_text(*data.divided_fields));
  if (!data.mixed.empty()) {
    std::vector<std::vector<std::string>> rows = {{"SOURCE", "SAMPLES", "IN AN EPOCH", "REPEATS"}};
    for (const MixedSource& source : data.mixed) {
      rows.push_back({source.path, std::to_string(source.samples), std::to_string(source.taken),
                      fmt::format("{:.2f}", source.repeats())});
    }
    out.line();
    out.table(std::move(rows), {"SAMPLES", "IN AN EPOCH", "REPEATS"});
  }
  if (!data.groups.empty()) {
    out.line();
    print_groups(data.groups, out);
  }
  if (!data.tensor_summary.empty()) out.line(fmt::format("Tensor parallelism: {}", data.tensor_summary));
}

void print_values(const CheckReport& report, ShownValues shown, Results& out) {
  std::vector<std::vector<std::string>> rows = {{"KEY", "VALUE", "FROM"}};
  for (const config::ResolvedValue& row : report.values) {
    if (row.origin || shown == ShownValues::kAll)
      rows.push_back({row.key, config::text_of(row.value), source_of(row)});
  }
  const std::size_t hidden = report.values.size() - (rows.size() - 1);
  if (rows.size() > 1) {
    out.line();
    out.table(std::move(rows), {});
  }
  if (hidden == 0) return;
  out.line();
  out.line(fmt::format("{}; --all shows them",
                       counted(hidden, "key has its default", "keys have their defaults")));
}

Json json_of(const config::Value& value) {
  struct Visitor {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(bool flag) const { return flag; }
    Json operator()(std::int64_t number) const { return number; }
    Json operator()(double number) const { return number; }
    Json operator()(const std::string& text) const { return text; }
    Json operator()(const std::vector<std::string>& list) const { return list; }
    Json operator()(const std::vector<double>& list) const { return list; }
    Json operator()(const config::Texts& texts) const {
      auto object = Json::object();
      for (const auto& [key, text] : texts) object[key] = text;
      return object;
    }
    Json operator()(const std::vector<config::Texts>& sections) const {
      auto list = Json::array();
      for (const config::Texts& section : sections) list.push_back((*this)(section));
      return list;
    }
  };
  return std::visit(Visitor{}, value);
}

Json json_of(const std::optional<config::Origin>& origin) {
  if (!origin) return {{"kind", "default"}, {"where", nullptr}};
  const char* kind = "file";
  if (origin->layer == config::Origin::Layer::kFlag) kind = "flag";
  if (origin->layer == config::Origin::Layer::kEnvironment) kind = "environment";
  const bool is_file = origin->layer == config::Origin::Layer::kFile;
  return {{"kind", kind}, {"where", is_file ? config::text_of(*origin) : origin->source}};
}

Json json_of(const std::optional<TrainingData>& data) {
  if (!data) return nullptr;
  Json object = {{"samples", data->samples},
                 {"steps_per_epoch", data->steps_per_epoch},
                 {"steps", data->steps},
                 {"epochs", data->epochs}};
  if (data->divided_fields) object["divided_fields"] = *data->divided_fields;
  for (const MixedSource& source : data->mixed)
    object["sources"].push_back(
        {{"path", source.path}, {"samples", source.samples}, {"taken", source.taken}});
  return object;
}

Json json_of(const config::ResolvedValue& row) {
  Json object = {{"key", row.key}, {"value", json_of(row.value)}, {"source", json_of(row.origin)}};
  if (row.written) object["written"] = *row.written;
  return object;
}

}  // namespace

void print_check_text(const CheckReport& report, ShownValues shown, Results& out) {
  print_verdict(report, out);
  if (report.data) print_data(*report.data, out);
  print_values(report, shown, out);
  print_list("Warnings:", report.warnings, out);
  print_list("Settings without effect:", report.without_effect, out);
}

void print_check_json(const CheckReport& report, Results& out) {
  Json document = {{"type", "check"}};
  document["values"] = Json::array();
  for (const config::ResolvedValue& row : report.values) document["values"].push_back(json_of(row));
  document["warnings"] = report.warnings;
  document["without_effect"] = report.without_effect;
  document["training_data"] = json_of(report.data);
  if (report.data && !report.data->tensor_summary.empty())
    document["tensor_parallelism"] = report.data->tensor_summary;
  if (report.data && !report.data->groups.empty())
    document["parameter_groups"] = json_of(report.data->groups);
  out.json(document);
}

}  // namespace accel::cli
