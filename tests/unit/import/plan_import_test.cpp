#include "import/plan_import.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

namespace accel {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A linear layer, dropout in a module, a product with a buffer, and a graph without gradients.
json program() {
  return json::parse(R"json({
    "schema_version": {"major": 8, "minor": 17},
    "range_constraints": {"s0": {"min_val": 3, "max_val": 9}},
    "graph_module": {
      "module_call_graph": [{"fqn": ""}, {"fqn": "fc"}, {"fqn": "drop"}],
      "signature": {
        "input_specs": [
          {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "fc.weight"}},
          {"buffer": {"arg": {"name": "b_s"}, "buffer_name": "scale", "persistent": false}},
          {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "out"}}}}]},
      "graph": {
        "inputs": [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "b_s"}}, {"as_tensor": {"name": "x"}}],
        "outputs": [{"as_tensor": {"name": "out"}}],
        "tensor_values": {"x": {"sizes": [{"as_expr": {"expr_str": "Symbol('s0', integer=True)"}}, {"as_int": 2}]}},
        "nodes": [
          {"target": "torch.ops.aten.linear.default", "outputs": [{"as_tensor": {"name": "linear"}}],
           "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
                      {"name": "weight", "arg": {"as_tensor": {"name": "p_w"}}, "kind": 1}],
           "metadata": {"nn_module_stack": "L__self__,,m.Net;L__self__fc,fc,torch.nn.Linear"}},
          {"target": "torch.ops.aten.dropout.default", "outputs": [{"as_tensor": {"name": "dropout"}}],
           "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1},
                      {"name": "p", "arg": {"as_float": 0.5}, "kind": 1},
                      {"name": "train", "arg": {"as_bool": true}, "kind": 1}],
           "metadata": {"nn_module_stack": "L__self__,,m.Net;L__self__drop,drop,torch.nn.Dropout",
                        "stack_trace": "File \"net.py\", line 7, in forward\n    drop(x)"}},
          {"target": "torch.ops.higher_order.wrap_with_set_grad_enabled", "outputs": [{"as_tensor": {"name": "shifted"}}],
           "inputs": [{"name": "enabled", "arg": {"as_bool": false}, "kind": 1},
                      {"name": "graph", "arg": {"as_graph": {"name": "g", "graph": {
                         "inputs": [{"as_tensor": {"name": "a"}}], "outputs": [{"as_tensor": {"name": "b"}}],
                         "nodes": [{"target": "torch.ops.aten.add.Tensor", "outputs": [{"as_tensor": {"name": "b"}}],
                                    "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "a"}}, "kind": 1},
                                               {"name": "other", "arg": {"as_int": 1}, "kind": 1}],
                                    "metadata": {}}]}}}, "kind": 1},
                      {"name": "x", "arg": {"as_tensor": {"name": "dropout"}}, "kind": 1}],
           "metadata": {"nn_module_stack": "L__self__,,m.Net"}},
          {"target": "torch.ops.aten.mul.Tensor", "outputs": [{"as_tensor": {"name": "out"}}],
           "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "shifted"}}, "kind": 1},
                      {"name": "other", "arg": {"as_tensor": {"name": "b_s"}}, "kind": 1}],
           "metadata": {"nn_module_stack": "L__self__,,m.Net"}}]}}})json");
}

json tensor_config(const char* name, const char* record, std::vector<int> sizes, std::vector<int> strides) {
  json meta = {{"dtype", 7}, {"requires_grad", true}, {"layout", 7}, {"storage_offset", {{"as_int", 0}}}};
  meta["sizes"] = json::array();
  meta["strides"] = json::array();
  for (const int size : sizes) meta["sizes"].push_back({{"as_int", size}});
  for (const int stride : strides) meta["strides"].push_back({{"as_int", stride}});
  return {
      {"config",
       {{name, {{"path_name", record}, {"is_param", true}, {"use_pickle", false}, {"tensor_meta", meta}}}}}};
}

struct Parts {
  json model = program();
  json weights = tensor_config("fc.weight", "weight_0", {3, 2}, {2, 1});
  json constants = tensor_config("scale", "tensor_0", {3}, {1});
};

class ImportTest : public ::testing::Test {
 protected:
  ImportPlan plan_of(const Parts& parts) {
    const auto path = dir_ / "m.pt2";
    ckpt::testing::write_zip(path, {{"m/data/weights/weight_0", std::string(24, 'a')},
                                    {"m/data/weights/model_weights_config.json", parts.weights.dump()},
                                    {"m/data/constants/tensor_0", std::string(12, 'b')},
                                    {"m/data/constants/model_constants_config.json", parts.constants.dump()},
                                    {"m/models/model.json", parts.model.dump()},
                                    {"m/archive_format", "pt2"}});
    return plan_import("m.pt", ckpt::Pt2Archive(path));
  }

  /// The text of the record whose name ends with `name`.
  static std::string text_of(const ImportPlan& plan, const std::string& name) {
    const ckpt::OutputArchive& archive = plan.file.archives.at(0);
    for (std::size_t i = 0; i < archive.layout.records().size(); ++i) {
      if (archive.layout.records()[i].name.ends_with(name))
        return std::get<std::string>(plan.file.segments.at(archive.first_segment + i).content);
    }
    ADD_FAILURE() << name;
    return "";
  }

  std::string error_of(const Parts& parts) {
    try {
      (void)plan_of(parts);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  }

  testing::TempDir dir_;
};

TEST_F(ImportTest, WritesAMethodForEachCallOfAModule) {
  const ImportPlan plan = plan_of({});
  EXPECT_EQ(plan.modules, 3);
  EXPECT_EQ(plan.operators, 4);
  const std::string root = text_of(plan, "mangle_0.py");
  EXPECT_THAT(root, HasSubstr("class Net(Module):"));
  EXPECT_THAT(root, HasSubstr("linear = (self.fc).forward(x, )"));
  EXPECT_THAT(root, HasSubstr("out = torch.mul(shifted, self.scale)"));
  EXPECT_THAT(root, HasSubstr("torch.ge(__size_0, 3)"));
  EXPECT_THAT(root, HasSubstr("torch.le(__size_0, 9)"));
  EXPECT_THAT(root, HasSubstr("torch.eq(__size_1, 2)"));
  EXPECT_THAT(text_of(plan, "mangle_1.py"), HasSubstr("torch.linear(x, self.weight)"));
  EXPECT_THAT(text_of(plan, "mangle_2.py"), HasSubstr("torch.dropout(linear, 0.5, self.training)"));
  EXPECT_EQ(json::parse(text_of(plan, "accel.json")).at("non_persistent"), json{"scale"});
}

TEST_F(ImportTest, SaysTheAuthorsLineInAComment) {
  const auto statement_for = [&](const std::string& trace) {
    Parts parts;
    parts.model["graph_module"]["graph"]["nodes"][1]["metadata"]["stack_trace"] = trace;
    const std::string text = text_of(plan_of(parts), "mangle_2.py");
    const std::size_t at = text.find("dropout = ");
    return text.substr(at, text.find('\n', at) - at);
  };
  const std::string plain = "dropout = torch.dropout(linear, 0.5, self.training)";
  EXPECT_EQ(statement_for("File \"net.py\", line 7, in forward\n    drop(x)"), plain + "  # net.py:7");
  // The innermost line that is not torch's, from the package on.
  EXPECT_EQ(statement_for("File \"/a/net.py\", line 7, in forward\n  File "
                          "\"/v/site-packages/models/gpt.py\", line 31, in forward\n  File "
                          "\"/v/site-packages/torch/nn/modules/dropout.py\", line 73, in forward\n"),
            plain + "  # models/gpt.py:31");
  EXPECT_EQ(statement_for("File \"torch/fx/passes.py\", line 24, in run"), plain);
  // No path ends the comment, or is read as a part of the code.
  EXPECT_EQ(statement_for("File \"a\nimport os\", line 7, in f"), plain);
  EXPECT_EQ(statement_for("File \"type\", line 7, in f"), plain);
  EXPECT_EQ(statement_for("File \"net.py\", line x"), plain);
}

TEST_F(ImportTest, RefusesByNameWhatItDoesNotKnow) {
  Parts parts;
  json& nodes = parts.model["graph_module"]["graph"]["nodes"];
  nodes[1]["target"] = "torch.ops.mine.dropout.default";
  EXPECT_THAT(error_of(parts),
              HasSubstr("torch.ops.mine.dropout.default in module 'drop', at File \"net.py\", line 7"));
  nodes[1]["target"] = "torch.ops.aten.dropout.default";
  nodes[1]["inputs"][2]["arg"] = {{"as_bool", false}};
  EXPECT_THAT(error_of(parts), HasSubstr("exported in evaluation mode"));
  parts = {};
  parts.model["schema_version"]["major"] = 9;
  EXPECT_THAT(error_of(parts), HasSubstr("version 9.17"));
  parts = {};
  parts.weights["config"]["fc.weight"]["use_pickle"] = true;
  EXPECT_THAT(error_of(parts), HasSubstr("object of a Python class"));
  parts = {};
  parts.weights["config"]["fc.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 4;
  EXPECT_THAT(error_of(parts), HasSubstr("needs 32 bytes"));
}

/// Whatever stands in a document, the result is a plan or an Error.
TEST_F(ImportTest, AnyValueInPlaceOfAnyOtherIsAnErrorAndNotACrash) {
  const std::vector<json> values = {nullptr,
                                    -1,
                                    std::int64_t{1} << 62,
                                    1e300,
                                    "",
                                    "..",
                                    "x,y;z",
                                    true,
                                    json::array(),
                                    json::object(),
                                    json::array({json::object()})};
  const Parts sound;
  for (json Parts::*document : {&Parts::model, &Parts::weights, &Parts::constants}) {
    std::vector<json::json_pointer> places;
    const json flat = (sound.*document).flatten();
    for (const auto& [pointer, leaf] : flat.items()) {
      // The leaf and all that it is in.
      for (json::json_pointer place(pointer); !place.empty(); place = place.parent_pointer())
        places.push_back(place);
    }
    for (const json::json_pointer& place : places) {
      for (const json& value : values) {
        Parts parts;
        (parts.*document)[place] = value;
        SCOPED_TRACE(place.to_string() + " = " + value.dump());
        try {
          (void)plan_of(parts);
        } catch (const Error&) {
          continue;
        }
      }
    }
  }
}

}  // namespace
}  // namespace accel
