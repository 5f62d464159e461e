#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "ckpt/diff/diff.hpp"
#include "ckpt/diff/plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "cli/ckpt/open_source.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

using ckpt::DiffResult;
using ckpt::ObjectDifference;
using ckpt::TensorDifference;
using ckpt::UnpairedTensor;
using Json = nlohmann::ordered_json;

struct DiffOptions {
  std::string a;
  std::string b;
  ckpt::DiffSelection selection;
  std::vector<std::string> rename;
  ckpt::DiffOptions diff;
  std::size_t max_findings = 20;
};

std::string describe(const UnpairedTensor& tensor) {
  return fmt::format("{} {} {}", tensor.name, ckpt::torch_name(tensor.dtype), ckpt::to_string(tensor.shape));
}

// One line per difference.
std::vector<std::string> lines_of(const TensorDifference& tensor, bool ignore_dtype) {
  if (tensor.other_shape()) {
    return {fmt::format("shape: {} is {} in A, {} in B", tensor.name, ckpt::to_string(tensor.shape_a),
                        ckpt::to_string(tensor.shape_b))};
  }
  std::vector<std::string> lines;
  if (tensor.other_dtype() && !ignore_dtype) {
    lines.push_back(fmt::format("dtype: {} is {} in A, {} in B", tensor.name,
                                ckpt::torch_name(tensor.dtype_a), ckpt::torch_name(tensor.dtype_b)));
  }
  if (tensor.values.elements > 0) {
    const bool opaque = ckpt::is_opaque(tensor.dtype_a) || ckpt::is_opaque(tensor.dtype_b);
    const std::string measures =
        opaque ? ""
               : fmt::format(", at most by {:g} (relative {:g}), rms {:g}", tensor.values.largest,
                             tensor.values.largest_relative, tensor.rms());
    lines.push_back(fmt::format("values: {} differs in {} of {} elements{}, first at {}", tensor.name,
                                tensor.values.elements, checked_numel(tensor.shape_a), measures,
                                ckpt::to_string(tensor.first_position())));
  }
  return lines;
}

std::string line_of(const ObjectDifference& object) {
  if (!object.b) return fmt::format("object: {} is only in A: {}", object.name, *object.a);
  if (!object.a) return fmt::format("object: {} is only in B: {}", object.name, *object.b);
  if (*object.a == *object.b) return fmt::format("object: {} differs within: {}", object.name, *object.a);
  return fmt::format("object: {} is {} in A, {} in B", object.name, *object.a, *object.b);
}

std::vector<std::string> lines_of(const DiffResult& result, bool ignore_dtype) {
  std::vector<std::string> lines;
  for (const UnpairedTensor& tensor : result.only_a) lines.push_back("only in A: " + describe(tensor));
  for (const UnpairedTensor& tensor : result.only_b) lines.push_back("only in B: " + describe(tensor));
  for (const TensorDifference& tensor : result.tensors) {
    for (std::string& line : lines_of(tensor, ignore_dtype)) lines.push_back(std::move(line));
  }
  for (const ObjectDifference& object : result.objects) lines.push_back(line_of(object));
  return lines;
}

std::string left_out_line(const std::vector<std::string>& names, char side) {
  return fmt::format("not compared: {} of {} is not under the root key{}", names.front(), side,
                     names.size() == 1 ? "" : fmt::format(", nor are {} more", names.size() - 1));
}

void print_summary(const DiffResult& result, const ckpt::Tolerance& tolerance, Results& out) {
  const std::string what =
      fmt::format("{} tensors, {}", result.compared_tensors, format_bytes(result.compared_bytes));
  const std::string how = tolerance.bitwise()
                              ? std::string("bit for bit")
                              : fmt::format("with rtol {:g} and atol {:g}", tolerance.rtol, tolerance.atol);
  if (result.same()) return out.verdict("", "same", Tone::kGood, fmt::format(": {}, {}", what, how));
  out.verdict("", "different", Tone::kBad,
              fmt::format(": {} only in A, {} only in B, {} of {} in both differ, {} objects ({}, {})",
                          result.only_a.size(), result.only_b.size(), result.tensors.size(),
                          result.paired_tensors, result.objects.size(), what, how));
}

void print_text(const DiffResult& result, const DiffOptions& options, Results& out) {
  const std::vector<std::string> lines = lines_of(result, options.diff.ignore_dtype);
  const std::size_t shown = std::min(lines.size(), options.max_findings);
  for (std::size_t i = 0; i < shown; ++i) out.line(lines[i]);
  if (shown < lines.size()) {
    out.line(
        fmt::format("... and {} more; --max-findings shows more of them, --json all", lines.size() - shown));
  }
  if (!result.left_out_a.empty()) out.line(left_out_line(result.left_out_a, 'A'));
  if (!result.left_out_b.empty()) out.line(left_out_line(result.left_out_b, 'B'));
  print_summary(result, options.diff.tolerance, out);
}

// NaN and infinity as strings, because JSON has no numbers for them.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  return value;
}

Json to_json(const std::vector<UnpairedTensor>& tensors) {
  Json list = Json::array();
  for (const UnpairedTensor& tensor : tensors) {
    list.push_back(
        {{"name", tensor.name}, {"dtype", ckpt::torch_name(tensor.dtype)}, {"shape", tensor.shape}});
  }
  return list;
}

Json to_json(const TensorDifference& tensor) {
  Json entry{{"name", tensor.name},
             {"dtype_a", ckpt::torch_name(tensor.dtype_a)},
             {"dtype_b", ckpt::torch_name(tensor.dtype_b)},
             {"shape_a", tensor.shape_a},
             {"shape_b", tensor.shape_b}};
  if (tensor.other_shape()) return entry;
  entry["elements"] = checked_numel(tensor.shape_a);
  entry["different"] = tensor.values.elements;
  if (tensor.values.elements == 0) return entry;
  entry["largest"] = number(tensor.values.largest);
  entry["largest_relative"] = number(tensor.values.largest_relative);
  entry["rms"] = number(tensor.rms());
  entry["first"] = tensor.first_position();
  return entry;
}

Json to_json(const ObjectDifference& object) {
  Json entry{{"name", object.name}, {"a", nullptr}, {"b", nullptr}};
  if (object.a) entry["a"] = *object.a;
  if (object.b) entry["b"] = *object.b;
  return entry;
}

void print_json(const DiffResult& result, const ckpt::Checkpoint& a, const ckpt::Checkpoint& b,
                double seconds, Results& out) {
  Json document;
  document["a"] = {{"path", a.path().string()}, {"kind", name_of(a.kind())}};
  document["b"] = {{"path", b.path().string()}, {"kind", name_of(b.kind())}};
  document["same"] = result.same();
  document["compared_tensors"] = result.compared_tensors;
  document["compared_objects"] = result.compared_objects;
  document["compared_bytes"] = result.compared_bytes;
  document["seconds"] = seconds;
  document["only_in_a"] = to_json(result.only_a);
  document["only_in_b"] = to_json(result.only_b);
  document["tensors"] = Json::array();
  for (const TensorDifference& tensor : result.tensors) document["tensors"].push_back(to_json(tensor));
  document["objects"] = Json::array();
  for (const ObjectDifference& object : result.objects) document["objects"].push_back(to_json(object));
  document["not_compared"] = {{"a", result.left_out_a}, {"b", result.left_out_b}};
  out.json(document);
}

ExitCode run_diff(DiffOptions& options, const Globals& globals) {
  for (const std::string& rule : options.rename) options.selection.rename.push_back(ckpt::parse_rename(rule));
  const std::unique_ptr<ckpt::Checkpoint> a = open_source(options.a, "comparing");
  const std::unique_ptr<ckpt::Checkpoint> b = open_source(options.b, "comparing");
  const ckpt::DiffPlan plan = ckpt::plan_diff(*a, *b, options.selection);
  DiffResult result;
  double seconds = 0;
  {
    Progress progress("comparing", ckpt::bytes_to_compare(*a, *b, plan), globals.progress());
    result = ckpt::diff_checkpoints(*a, *b, plan, options.diff, progress);
    seconds = progress.seconds();
  }
  if (globals.json) {
    print_json(result, *a, *b, seconds, *globals.out);
  } else {
    print_text(result, options, *globals.out);
  }
  return result.same() ? ExitCode::kSuccess : ExitCode::kFindings;
}

}  // namespace

void add_diff(CommandLine& line) {
  Command command = line.add("diff", "Compare two checkpoints of any kinds, tensor by tensor");
  auto options = std::make_shared<DiffOptions>();
  command.positional("A", options->a, "A checkpoint, a model file, or a directory with exactly one");
  command.positional("B", options->b, "Another one, of the same or another kind");
  command.amount("--rtol", "X", options->diff.tolerance.rtol, "Allow |a - b| <= atol + rtol * |b| (0)");
  command.amount("--atol", "X", options->diff.tolerance.atol,
                 "See --rtol (0); if both are 0, all bits must be equal");
  command.flag("--ignore-dtype", options->diff.ignore_dtype,
               "Do not report different dtypes of equal values");
  command.texts("--rename", "FROM=TO", options->rename,
                "Rename A's tensors, for example module.=; may be repeated");
  command.texts("--include", "GLOB", options->selection.include, "Compare only these names; may be repeated");
  command.texts("--exclude", "GLOB", options->selection.exclude,
                "Do not compare these names; may be repeated");
  command.text("--root", "KEY", options->selection.root,
               "Compare what is under this key of the nested state dict");
  command.integer("--max-findings", "N", options->max_findings, "Findings to print (20)");
  command.integer("--threads", "N", options->diff.threads, "Threads that compare (2)", 1, 256);
  command.does([options](const Globals& globals) { return run_diff(*options, globals); });
}

}  // namespace accel::cli
