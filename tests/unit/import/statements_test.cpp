#include "import/statements.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace accel {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lines = std::vector<std::string>;

/// The inputs of a node, each an object of a name and a value of torch's schema; those of `keywords` have
/// kind 2.
json inputs_of(const std::vector<std::pair<std::string, json>>& arguments,
               const std::vector<std::pair<std::string, json>>& keywords = {}) {
  json inputs = json::array();
  for (const auto& [name, value] : arguments) inputs.push_back({{"name", name}, {"arg", value}, {"kind", 1}});
  for (const auto& [name, value] : keywords) inputs.push_back({{"name", name}, {"arg", value}, {"kind", 2}});
  return inputs;
}

json tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

class StatementsTest : public ::testing::Test {
 protected:
  /// Adds a node of the operator `target` whose result is the tensor `out`.
  GraphNode& add(const std::string& target, json inputs) {
    documents_.push_back({{"inputs", std::move(inputs)}, {"metadata", json::object()}});
    GraphNode node;
    node.target = target;
    node.outputs = {{"out", GraphValue::Type::kTensor}};
    graph_.nodes.push_back(std::move(node));
    for (std::size_t i = 0; i < documents_.size(); ++i) graph_.nodes[i].document = &documents_[i];
    return graph_.nodes.back();
  }

  Lines lines() {
    StatementWriter writer(graph_);
    return writer.statements_of(graph_.nodes.back());
  }

  std::string refusal() {
    try {
      lines();
    } catch (const Error& error) {
      return error.message() + " | " + error.advice();
    }
    return "";
  }

  /// The text of one argument.
  std::string argument(const json& value) {
    add("torch.ops.aten.f.default", inputs_of({{"x", value}}));
    const std::string line = lines().at(0);
    return line.substr(std::string("out = torch.f(").size(),
                       line.size() - std::string("out = torch.f()").size());
  }

  ExportedGraph graph_;
  std::vector<json> documents_;
};

TEST_F(StatementsTest, ArgumentsAreInTheOrderOfTheNodeAndKeywordsHaveTheirNames) {
  add("torch.ops.aten.sum.dim_IntList", inputs_of({{"self", tensor("x")}, {"dim", {{"as_ints", {-1, 0}}}}},
                                                  {{"keepdim", {{"as_bool", true}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.sum(x, [-1, 0], keepdim=True)"));
}

TEST_F(StatementsTest, EachKindOfArgumentIsAnExpression) {
  EXPECT_EQ(argument({{"as_none", true}}), "None");
  EXPECT_EQ(argument({{"as_tensors", {{{"name", "a"}}, {{"name", "b"}}}}}), "[a, b]");
  EXPECT_EQ(argument({{"as_optional_tensors", {{{"as_none", true}}, {{"as_tensor", {{"name", "b"}}}}}}}),
            "annotate(List[Optional[Tensor]], [None, b])");
  EXPECT_EQ(argument({{"as_int", -9223372036854775807}}), "-9223372036854775807");
  EXPECT_EQ(argument({{"as_sym_ints", {{{"as_int", 3}}, {{"as_name", "sym_size"}}}}}), "[3, sym_size]");
  EXPECT_EQ(argument({{"as_bools", {true, false}}}), "[True, False]");
  EXPECT_EQ(argument({{"as_string", "a\"b\n"}}), R"("a\"b\n")");
  EXPECT_EQ(argument({{"as_memory_format", 2}}), "2");  // channels_last
  EXPECT_EQ(argument({{"as_device", {{"type", "cuda"}, {"index", 1}}}}), "torch.device(\"cuda:1\")");
  EXPECT_EQ(argument({{"as_device", {{"type", "cpu"}, {"index", nullptr}}}}), "torch.device(\"cpu\")");
}

TEST_F(StatementsTest, FloatsKeepTheirValue) {
  EXPECT_EQ(argument({{"as_float", 2.0}}), "2.0");
  EXPECT_EQ(argument({{"as_float", 0.1}}), "0.1");
  EXPECT_EQ(argument({{"as_float", 1e-30}}), "1e-30");
  EXPECT_EQ(argument({{"as_float", "Infinity"}}), "float(\"inf\")");
  EXPECT_EQ(argument({{"as_floats", {"-Infinity", "NaN"}}}), "[float(\"-inf\"), float(\"nan\")]");
}

// torch.export numbers dtypes by a table of its own: float32 is 7 there and 6 in c10, bfloat16 13 and 15.
TEST_F(StatementsTest, DtypesHaveTheNumbersOfTorchScript) {
  EXPECT_EQ(argument({{"as_scalar_type", 7}}), "6");
  EXPECT_EQ(argument({{"as_scalar_type", 13}}), "15");
  EXPECT_EQ(argument({{"as_scalar_type", 5}}), "4");
  add("torch.ops.aten.to.dtype", inputs_of({{"dtype", {{"as_scalar_type", 99}}}}));
  EXPECT_THAT(refusal(), HasSubstr("dtype 99"));
}

TEST_F(StatementsTest, ValuesThatAreNoVariablesHaveTheirExpressions) {
  add("torch.ops.aten.mul.Tensor", inputs_of({{"self", tensor("p_w")}, {"other", tensor("self")}}));
  StatementWriter writer(graph_);
  writer.set_expressions({{"p_w", "self.fc.weight"}});
  EXPECT_THAT(writer.statements_of(graph_.nodes[0]), ElementsAre("out = torch.mul(self.fc.weight, v_self)"));
}

TEST_F(StatementsTest, ResultsOfAListAreUnpacked) {
  GraphNode& node = add("torch.ops.aten.split.Tensor", inputs_of({{"self", tensor("x")}}));
  node.gives_list = true;
  EXPECT_THAT(lines(), ElementsAre("out, = torch.split(x)"));
  graph_.nodes.back().outputs.push_back({"rest", GraphValue::Type::kTensor});
  EXPECT_THAT(lines(), ElementsAre("out, rest, = torch.split(x)"));
}

TEST_F(StatementsTest, TrainingIsTheModulesOwn) {
  add("torch.ops.aten.dropout.default",
      inputs_of({{"input", tensor("x")}, {"p", {{"as_float", 0.5}}}, {"train", {{"as_bool", true}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.dropout(x, 0.5, self.training)"));
  // One that is off beside one that is on stays off.
  add("torch.ops.aten.dropout.default",
      inputs_of({{"input", tensor("x")}, {"p", {{"as_float", 0.5}}}, {"train", {{"as_bool", false}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.dropout(x, 0.5, False)"));
}

TEST_F(StatementsTest, AnExportInEvaluationModeIsRefused) {
  add("torch.ops.aten.dropout.default",
      inputs_of({{"input", tensor("x")}, {"p", {{"as_float", 0.5}}}, {"train", {{"as_bool", false}}}}));
  EXPECT_THAT(refusal(), HasSubstr("evaluation mode"));
  EXPECT_THAT(refusal(), HasSubstr("model.train()"));
}

TEST_F(StatementsTest, AttentionDropsOutInTrainingAlone) {
  add("torch.ops.aten.scaled_dot_product_attention.default",
      inputs_of({{"query", tensor("q")}, {"dropout_p", {{"as_float", 0.1}}}}));
  EXPECT_THAT(lines(), ElementsAre("if self.training:", "  _0 = 0.1", "else:", "  _0 = 0.",
                                   "out = torch.scaled_dot_product_attention(q, _0)"));
}

TEST_F(StatementsTest, ANormWithoutStatisticsUsesThoseOfTheBatchInEitherMode) {
  add("torch.ops.aten.instance_norm.default", inputs_of({{"input", tensor("x")},
                                                         {"running_mean", {{"as_none", true}}},
                                                         {"use_input_stats", {{"as_bool", true}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.instance_norm(x, None, True)"));
}

TEST_F(StatementsTest, CountedBatchesCountInTraining) {
  GraphNode& node =
      add("torch.ops.aten.add_.Tensor", inputs_of({{"self", tensor("n")}, {"other", {{"as_int", 1}}}}));
  node.counts_batches = true;
  EXPECT_THAT(lines(), ElementsAre("if self.training:", "  out = torch.add_(n, 1)", "else:", "  pass"));
}

TEST_F(StatementsTest, SizesAreComputedByTorchScriptsFunctions) {
  add("torch.ops.aten.sym_size.int", inputs_of({{"self", tensor("x")}, {"dim", {{"as_int", 1}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.size(x, 1)"));
  add("_operator.floordiv", inputs_of({{"a", {{"as_int", 7}}}, {"b", {{"as_int", 2}}}}));
  EXPECT_THAT(lines(), ElementsAre("out = torch.floordiv(7, 2)"));
  add("_operator.pow", inputs_of({{"a", {{"as_int", 7}}}}));
  EXPECT_THAT(refusal(), HasSubstr("this arithmetic of sizes"));
}

TEST_F(StatementsTest, OperatorsOutsideOfAtenAreRefusedByName) {
  add("torch.ops.mylib.special.default", inputs_of({}));
  EXPECT_THAT(refusal(), HasSubstr("only operators of the namespace aten"));
  add("torch.ops.higher_order.cond", inputs_of({}));
  EXPECT_THAT(refusal(), HasSubstr("control flow"));
}

TEST_F(StatementsTest, RandomOperatorsAreNoted) {
  add("torch.ops.aten.rand.default", inputs_of({{"size", {{"as_ints", {2}}}}}));
  StatementWriter writer(graph_);
  EXPECT_THAT(writer.statements_of(graph_.nodes[0]), ElementsAre("out = torch.rand([2])"));
  EXPECT_EQ(writer.random_operators().size(), 1U);
}

TEST_F(StatementsTest, ALineSaysWhereTheAuthorWroteIt) {
  add("torch.ops.aten.relu.default", inputs_of({{"self", tensor("x")}}));
  documents_[0]["metadata"]["stack_trace"] =
      "File \"/a/net.py\", line 3, in forward\n    f(x)\n  File \"/b/site-packages/torch/nn/relu.py\", line "
      "9, in f";
  EXPECT_THAT(lines(), ElementsAre("out = torch.relu(x)  # /a/net.py:3"));
}

TEST(IdentifierTest, NamesWithAMeaningInTorchScriptGetAnother) {
  EXPECT_EQ(identifier_of("x.1"), "x_1");
  EXPECT_EQ(identifier_of("lambda"), "v_lambda");
  EXPECT_EQ(identifier_of("torch"), "v_torch");
  EXPECT_EQ(identifier_of("2x"), "v_2x");
  EXPECT_EQ(identifier_of("_0"), "v__0");
  EXPECT_FALSE(is_identifier("class"));
  EXPECT_FALSE(is_identifier(""));
}

}  // namespace
}  // namespace accel
