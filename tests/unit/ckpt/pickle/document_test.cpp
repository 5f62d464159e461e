#include "ckpt/pickle/document.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/reader.hpp"
#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using namespace std::string_literals;
using ckpt::testing::bytes_of;
using ckpt::testing::error_of;
using ::testing::HasSubstr;

TEST(PickleDocumentTest, Scalars) {
  const std::string pickle = "\x80\x04(NK\xff\x88J\x00\x00\x00\x80J\xff\xff\xff\x1fJ\x00\x00\x00 "s +
                             "\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00\x8c\x02hi"s +
                             "C\x02xy"s + "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01t."s;
  const Document document(bytes_of(pickle));
  const NodeList items = *document.root().tuple();
  ASSERT_EQ(items.size(), 11U);
  EXPECT_TRUE(items[0].is_none());
  EXPECT_EQ(items[1].integer(), 255);
  EXPECT_EQ(items[2].boolean(), true);
  EXPECT_EQ(items[3].integer(), INT32_MIN);
  EXPECT_EQ(items[4].integer(), (1 << 29) - 1);
  EXPECT_EQ(items[5].integer(), 1 << 29);
  EXPECT_EQ(items[6].integer(), std::int64_t{1} << 40);
  EXPECT_EQ(items[7].real(), 1.5);
  EXPECT_EQ(items[8].text(), "hi");
  EXPECT_EQ(items[9].bytes(), "xy");
}

TEST(PickleDocumentTest, BigIntegersAreDigits) {
  const std::string pickle = "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s;
  const Document document(bytes_of(pickle));
  EXPECT_EQ(document.root().integer(), std::nullopt);
  EXPECT_EQ(document.root().big_integer()->size(), 9U);
}

TEST(PickleDocumentTest, WhatAValueIsNotIsNothing) {
  const std::string pickle = "\x80\x02K\x05."s;
  const Document document(bytes_of(pickle));
  const NodeRef value = document.root();
  EXPECT_FALSE(value.text() || value.bytes() || value.real() || value.boolean() || value.global() ||
               value.sequence() || value.mapping() || value.call());
}

TEST(PickleDocumentTest, SharedValuesHaveOneId) {
  const std::string pickle = "\x80\x04]\x94h\x00\x8c\x01z\x94h\x01t"s;
  const std::string whole = "\x80\x04(" + pickle.substr(2) + ".";
  const Document document(bytes_of(whole));
  const NodeList items = *document.root().tuple();
  EXPECT_EQ(items[0].id(), items[1].id());
  EXPECT_EQ(items[2].id(), items[3].id());
}

TEST(PickleDocumentTest, ContainersThatAreFilledInPartsAreWhole) {
  // Two lists are filled in turn, so that each has to move.
  std::string pickle = "\x80\x02]q\x00]q\x01"s;
  for (int i = 0; i < 200; ++i)
    pickle += std::string(i % 2 == 0 ? "h\x00"s : "h\x01"s) + "(K"s + static_cast<char>(i) + "Ne0"s;
  pickle += "\x86."s;
  const Document document(bytes_of(pickle));
  const NodeList lists = *document.root().tuple();
  for (std::size_t side = 0; side < 2; ++side) {
    const NodeList list = *lists[side].sequence();
    ASSERT_EQ(list.size(), 200U);
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(list[2 * i].integer(), static_cast<std::int64_t>(2 * i + side));
      EXPECT_TRUE(list[2 * i + 1].is_none());
    }
  }
}

TEST(PickleDocumentTest, InstancesAreRecordsWhileTheirDictIsTheirs) {
  const std::string alone = "\x80\x02"s + "cm\nC\n)\x81}X\x01\x00\x00\x00zK\x01sb."s;
  const Document own(bytes_of(alone));
  ASSERT_TRUE(own.root().call()->record());
  EXPECT_EQ(own.root().call()->record()->key(0).text(), "z");
  EXPECT_TRUE(own.root().call()->states().empty());
  // The pickle refers to the dict again, so it must stay a dict.
  const std::string shared = "\x80\x02"s + "cm\nC\n)\x81}q\x05X\x01\x00\x00\x00zK\x01sbh\x05\x86."s;
  const Document both(bytes_of(shared));
  const NodeList items = *both.root().tuple();
  EXPECT_FALSE(items[0].call()->record());
  EXPECT_EQ(items[0].call()->states()[0].id(), items[1].id());
  EXPECT_EQ(items[1].dict()->value(0).integer(), 1);
}

TEST(PickleDocumentTest, ASecondStateKeepsTheFirst) {
  const std::string pickle = "\x80\x02"s + "cm\nC\n)\x81}X\x01\x00\x00\x00zK\x01sbK\x07"s + "b."s;
  EXPECT_TRUE([&] {
    const Value value = parse(bytes_of(pickle));
    const auto* object = value.get<Object>();
    return object != nullptr && (*object)->states.size() == 2 &&
           same((*object)->states[0], Dict{{{"z", 1}}}) && same((*object)->states[1], 7);
  }());
}

TEST(PickleDocumentTest, ArgumentsThatAreSharedStayWhatTheyAre) {
  // t = (1, 2); (C(*t), t, C(*t)) and tuples made in between, which may use freed places.
  const std::string pickle =
      "\x80\x02(cm\nC\nq\x01K\x01K\x02\x86q\x02Rh\x02h\x01h\x02RK\x03K\x04\x86h\x01K\x05\x85RK\x06\x85t."s;
  const Value expected =
      Tuple{{reduce(Global("m", "C"), {1, 2}), Tuple{{1, 2}}, reduce(Global("m", "C"), {1, 2}), Tuple{{3, 4}},
             reduce(Global("m", "C"), {5}), Tuple{{6}}}};
  EXPECT_TRUE(same(parse(bytes_of(pickle)), expected));
}

TEST(PickleDocumentTest, ATupleOnTheStackTwiceIsKept) {
  const std::string pickle = "\x80\x02(cm\nC\nq\x01K\x09\x85"s + "2Q0"s + "R"s + "K\x07\x85t."s;
  // ((9,)) is duplicated, made a persistent reference and dropped; then the call takes it.
  EXPECT_TRUE(same(parse(bytes_of(pickle)), Tuple{{reduce(Global("m", "C"), {9}), Tuple{{7}}}}));
}

TEST(PickleDocumentTest, OrderedDictsAreMappings) {
  const std::string pickle = "\x80\x02"s + "ccollections\nOrderedDict\n)RX\x01\x00\x00\x00zK\x01s."s;
  const Document document(bytes_of(pickle));
  ASSERT_TRUE(document.root().mapping());
  EXPECT_EQ(document.root().mapping()->value(0).integer(), 1);
  EXPECT_FALSE(document.root().dict());
}

// Python 2 pickles an OrderedDict as a call with a list of its entries, which may be lists or tuples.
TEST(PickleDocumentTest, AnOrderedDictHasTheEntriesThatItIsMadeOf) {
  const std::string start = "\200\002ccollections\nOrderedDict\n";
  const std::string behind = "\205RU\001xK\003s.";
  for (const char* argument :
       {"](](U\001zK\001e](U\001yK\002ee", "]U\001zK\001\206a", "}(U\001zK\001U\001yK\002u"}) {
    const std::string pickle = start + argument + behind;
    const Document document(bytes_of(pickle));
    const auto mapping = document.root().mapping();
    ASSERT_TRUE(mapping);
    EXPECT_EQ(mapping->key(0).text(), "z");
    EXPECT_EQ(mapping->value(0).integer(), 1);
    EXPECT_EQ(mapping->key(mapping->size() - 1).text(), "x");
    EXPECT_EQ(mapping_of(parse(bytes_of(pickle)))->size(), mapping->size());
  }
  const std::string odd = start + "]K\001a\205R.";
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)Document(bytes_of(odd)); }),
              HasSubstr("an entry of an OrderedDict that is not a pair"));
}

TEST(PickleDocumentTest, DescribesAsValuesAreDescribed) {
  for (const std::string& pickle :
       {"\x80\x02N."s, "\x80\x02\x88."s, "\x80\x02K\x05."s, "\x80\x02X\x01\x00\x00\x00z."s, "\x80\x02)."s,
        "\x80\x02K\x01\x85."s, "\x80\x02]."s, "\x80\x02}K\x01K\x02s."s, "\x80\x04\x8f."s,
        "\x80\x02"s + "cm\nC\n.", "\x80\x04\x8c\x01m\x8c\x01"s + "C\x93."s,
        "\x80\x02G?\xf8\x00\x00\x00\x00\x00\x00."s, "\x80\x02K\x05Q."s, "\x80\x03"s + "C\x02xy."s,
        "\x80\x02"s + "cm\nC\n)R.", "\x80\x02"s + "cm\nC\n)R)R.",
        "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s,
        "\x80\x02X\x50\x00\x00\x00"s + std::string(80, 'y') + "."}) {
    const Document document(bytes_of(pickle));
    EXPECT_EQ(describe(document.root()), describe(parse(bytes_of(pickle))));
  }
}

TEST(PickleDocumentTest, HostileDepthNeitherRecursesNorLoops) {
  const std::string nested = "\x80\x02"s + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
  const Document lists(bytes_of(nested));
  EXPECT_EQ(lists.root().sequence()->size(), 1U);
  std::string calls = "\x80\x02"s + "cm\nC\n";
  for (int i = 0; i < 100'000; ++i) calls += ")R";
  calls += ".";
  const Document called(bytes_of(calls));
  EXPECT_THAT(describe(called.root()), HasSubstr("a call(...)"));
}

TEST(PickleDocumentTest, ManyCallsOfOneLargeTupleAreNotCopies) {
  // A tuple of 1000, and 100,000 calls with it: copies would be 400 MB.
  std::string pickle = "\x80\x02]q\x00"s + "cm\nC\nq\x01("s + std::string(1000, 'N') + "tq\x02";
  pickle += "00(";
  for (int i = 0; i < 100'000; ++i) pickle += "h\x01h\x02R"s;
  pickle += "e.";
  const Document document(bytes_of(pickle));
  EXPECT_EQ(document.root().sequence()->size(), 100'000U);
  EXPECT_LT(document.root().graph().children.size(), 500'000U);
}

}  // namespace
}  // namespace accel::ckpt::pickle
