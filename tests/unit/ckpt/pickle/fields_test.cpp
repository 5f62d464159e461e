#include "ckpt/pickle/fields.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/document.hpp"
#include "ckpt/pickle/writer.hpp"
#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using ckpt::testing::bytes_of;
using ckpt::testing::error_of;
using ::testing::HasSubstr;

TEST(PickleFieldsTest, TypesAreFoundByModuleAndName) {
  const std::string pickle = write(List{
      {instance(Global("torch.a", "C"), Dict{{{"x", 1}}}), instance(Global("torch.a", "C"), Dict{{{"x", 2}}}),
       instance(Global("other", "C"), Dict{}), instance(Global("torch.a", "D"), Dict{}), 5}});
  const Document document(bytes_of(pickle));
  const NodeList items = *document.root().sequence();
  Type anywhere("torch.", "C");
  Type exact("torch.a", "C");
  Type wrong("torch", "C");
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(anywhere.is(items[i]), i < 2) << i;
    EXPECT_EQ(exact.is(items[i]), i < 2) << i;
    EXPECT_FALSE(wrong.is(items[i]));
  }
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)anywhere.require(items[4]); }),
              HasSubstr("a C is expected, found 5"));
}

TEST(PickleFieldsTest, TheLastFieldOfANameCounts) {
  const std::string pickle = write(Dict{{{"a", 1}, {"b", 2}, {"a", 3}}});
  const Document document(bytes_of(pickle));
  const NodePairs pairs = *document.root().dict();
  Field a("T", "a");
  Field missing("T", "c");
  EXPECT_EQ(a.require(pairs).integer(), 3);
  EXPECT_EQ(a.require(pairs).integer(), 3);
  EXPECT_FALSE(missing.find(pairs));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)missing.require(pairs); }),
              HasSubstr("T without 'c'"));
}

// Field remembers names that are not its own; they must not be taken for it, however many there are.
TEST(PickleFieldsTest, KnownNamesDoNotHideLaterOnes) {
  const std::string pickle =
      write(List{{Dict{{{"x", 1}, {"p", 0}, {"q", 0}}}, Dict{{{"r", 0}, {"x", 2}, {"s", 0}}},
                  Dict{{{"x", 3}, {"t", 0}, {"x", 4}, {"u", 0}}}, Dict{{{"p", 0}}},
                  Dict{{{3, 0}, {pickle::None{}, 0}, {"x", 5}}}}});
  const Document document(bytes_of(pickle));
  const NodeList items = *document.root().sequence();
  Field x("T", "x");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(x.require(*items[0].dict()).integer(), 1);
    EXPECT_EQ(x.require(*items[1].dict()).integer(), 2);
    EXPECT_EQ(x.require(*items[2].dict()).integer(), 4);
    EXPECT_FALSE(x.find(*items[3].dict()));
    EXPECT_EQ(x.require(*items[4].dict()).integer(), 5);
  }
}

TEST(PickleFieldsTest, AnInstanceWithoutStateHasNoFields) {
  const std::string pickle =
      "\x80\x02"
      "ctorch.a\nC\n)\x81.";
  const Document document(bytes_of(pickle));
  Type type("torch.", "C");
  ASSERT_TRUE(type.find(document.root()));
  EXPECT_EQ(type.find(document.root())->size(), 0U);
}

TEST(PickleFieldsTest, RequireNamesWhatIsWrong) {
  const std::string pickle = write(Tuple{{-1, "text"}});
  const Document document(bytes_of(pickle));
  const NodeList items = *document.root().tuple();
  EXPECT_EQ(require_text(items[1], "it"), "text");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)require_text(items[0], "it"); }),
              HasSubstr("it is not a string, found -1"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)require_size(items[0], "it"); }),
              HasSubstr("it is not a size, found -1"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)require_mapping(items[0], "it"); }),
              HasSubstr("it is not a dict"));
}

}  // namespace
}  // namespace accel::ckpt::pickle
