#include "ckpt/torchscript/signature.hpp"

#include <gmock/gmock.h>

#include <tuple>

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Row = std::tuple<std::string, std::string, bool>;

std::vector<Row> rows(std::string_view source) {
  std::vector<Row> rows;
  for (const ScriptArgument& argument : arguments_of(source))
    rows.emplace_back(argument.name, argument.type, argument.has_default);
  return rows;
}

TEST(SignatureTest, ArgumentsOnOneLine) {
  EXPECT_THAT(
      rows("  def forward(self: __torch__.GPT, input_ids: Tensor) -> Tensor:\n    return input_ids\n"),
      ElementsAre(Row("input_ids", "Tensor", false)));
}

TEST(SignatureTest, ArgumentsOnSeveralLines) {
  EXPECT_THAT(rows("  def forward(self: __torch__.GPT,\n    ids: Tensor,\n    labels: Tensor) -> Tensor:\n"),
              ElementsAre(Row("ids", "Tensor", false), Row("labels", "Tensor", false)));
}

TEST(SignatureTest, DefaultsAndTypesWithCommas) {
  EXPECT_THAT(rows("  def forward(self: M, x: Dict[str, Tensor], mask: Optional[Tensor]=None, "
                   "name: str=\"a, b)\", sizes: List[int]=[1, 2]) -> Tuple[Tensor, Tensor]:\n"),
              ElementsAre(Row("x", "Dict[str, Tensor]", false), Row("mask", "Optional[Tensor]", true),
                          Row("name", "str", true), Row("sizes", "List[int]", true)));
}

TEST(SignatureTest, NoArgumentsAndNoMethod) {
  EXPECT_THAT(rows("  def forward(self: M) -> Tensor:\n"), IsEmpty());
  EXPECT_THAT(rows(""), IsEmpty());
  EXPECT_THAT(rows("  def forward(self: M, x: Tensor"), ElementsAre(Row("x", "Tensor", false)));
  EXPECT_THAT(rows("  def forward(self: M, \"x"), ElementsAre(Row("\"x", "", false)));
}

TEST(SignatureTest, TheTypeThatIsReturned) {
  EXPECT_EQ(returned_type("  def forward(self: M, x: Tensor) -> Tensor:\n    return x\n"), "Tensor");
  EXPECT_EQ(returned_type("def f(self: M,\n    n: Tuple[int, str]=(1, \")\")) -> Dict[str, Tensor]:\n"),
            "Dict[str, Tensor]");
  EXPECT_EQ(returned_type("def f(self: M):\n  x = 1\n"), "");
  EXPECT_EQ(returned_type("def f(self: M"), "");
  EXPECT_EQ(returned_type(""), "");
}

}  // namespace
}  // namespace accel::ckpt
