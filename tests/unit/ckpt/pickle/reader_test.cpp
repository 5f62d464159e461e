#include "ckpt/pickle/reader.hpp"

#include <gmock/gmock.h>

#include <string>
#include <string_view>

#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using namespace std::string_literals;
using ckpt::testing::bytes_of;
using ckpt::testing::error_of;
using ckpt::testing::expect_ok_or_error;
using ::testing::HasSubstr;

Value read(std::string_view pickle) { return parse(bytes_of(pickle)); }
std::string rejection(std::string_view pickle) {
  return error_of(ErrorKind::kCorrupt, [&] { (void)read(pickle); });
}

// The bytes of Python's pickle.dumps(value, protocol).
const std::string kNested4 =
    "\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
    "a\x94K\x01\x8c\x01"
    "b\x94]\x94(K\x02G?\xf8\x00\x00\x00\x00\x00\x00Neu."s;

// Python says "pickle exhausted before end of frame".
TEST(PickleReaderTest, AFrameIsNotLongerThanThePickle) {
  std::string pickle = kNested4;
  EXPECT_NO_THROW((void)read(pickle));
  pickle[3] = '\x20';
  EXPECT_THAT(rejection(pickle), HasSubstr("a frame that is longer than the rest of the pickle"));
  pickle[10] = '\x7f';
  EXPECT_THAT(rejection(pickle), HasSubstr("a frame that is longer than the rest of the pickle"));
}

TEST(PickleReaderTest, ReadsScalars) {
  EXPECT_TRUE(same(read("\x80\x02N."s), None{}));
  EXPECT_TRUE(same(read("\x80\x02\x88."s), true));
  EXPECT_TRUE(same(read("\x80\x02\x89."s), false));
  EXPECT_TRUE(same(read("\x80\x02K\xff."s), 255));
  EXPECT_TRUE(same(read("\x80\x02M\x00\x01."s), 256));
  EXPECT_TRUE(same(read("\x80\x02J\xff\xff\xff\xff."s), -1));
  EXPECT_TRUE(same(read("\x80\x02\x8a\x06\x00\x00\x00\x00\x00\x01."s), std::int64_t{1} << 40));
  EXPECT_TRUE(same(read("\x80\x02\x8a\x01\x80."s), -128));
  EXPECT_TRUE(same(read("\x80\x02\x8a\x00."s), 0));
  EXPECT_TRUE(same(read("\x80\x02G?\xf8\x00\x00\x00\x00\x00\x00."s), 1.5));
}

TEST(PickleReaderTest, IntegersBeyond64BitsAreKeptAsTheyAre) {
  const Value value = read("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s);
  EXPECT_TRUE(same(value, BigInt{"\x00\x00\x00\x00\x00\x00\x00\x00\x01"s}));
}

TEST(PickleReaderTest, ReadsTextAndBytesOfEveryWidth) {
  EXPECT_TRUE(same(read("\x80\x04\x8c\x02hi."s), "hi"));
  EXPECT_TRUE(same(read("\x80\x02X\x02\x00\x00\x00hi."s), "hi"));
  EXPECT_TRUE(same(read("\x80\x04\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi."s), "hi"));
  EXPECT_TRUE(same(read("\x80\x02U\x02hi."s), "hi"));
  EXPECT_TRUE(same(read("\x80\x03"
                        "C\x02hi."s),
                   Bytes{"hi"}));
  EXPECT_TRUE(same(read("\x80\x03"
                        "B\x02\x00\x00\x00hi."s),
                   Bytes{"hi"}));
  EXPECT_TRUE(same(read("\x80\x05\x96\x02\x00\x00\x00\x00\x00\x00\x00hi."s), Bytes{"hi"}));
}

TEST(PickleReaderTest, ReadsContainers) {
  EXPECT_TRUE(same(read("\x80\x02)."s), Tuple{}));
  EXPECT_TRUE(same(read("\x80\x02K\x01K\x02K\x03\x87."s), Tuple{{1, 2, 3}}));
  EXPECT_TRUE(same(read("\x80\x02(K\x01K\x02K\x03K\x04t."s), Tuple{{1, 2, 3, 4}}));
  EXPECT_TRUE(same(read("\x80\x02]K\x01"
                        "a."s),
                   List{{1}}));
  EXPECT_TRUE(same(read("\x80\x02}K\x01K\x02s."s), Dict{{{1, 2}}}));
  EXPECT_TRUE(same(read("\x80\x02(K\x01K\x02l."s), List{{1, 2}}));
  EXPECT_TRUE(same(read("\x80\x02(K\x01K\x02"
                        "d."s),
                   Dict{{{1, 2}}}));
  EXPECT_TRUE(same(read("\x80\x04\x8f(K\x01K\x02\x90."s), Set{{1, 2}, false}));
  EXPECT_TRUE(same(read("\x80\x04(K\x01\x91."s), Set{{1}, true}));
}

TEST(PickleReaderTest, AContainerThatIsFilledAfterItWasMemoizedIsWhole) {
  // x = []; ((x, x), x), and 7 is appended at the very end.
  const Value value = read(
      "\x80\x02]q\x00h\x00\x86h\x00K\x07"
      "a\x86."s);
  EXPECT_TRUE(same(value, Tuple{{Tuple{{List{{7}}, List{{7}}}}, List{{7}}}}));
}

TEST(PickleReaderTest, SharedPartsAreCopied) {
  EXPECT_TRUE(same(read("\x80\x02X\x01\x00\x00\x00"
                        "aq\x05h\x05j\x05\x00\x00\x00\x87."s),
                   Tuple{{"a", "a", "a"}}));
  EXPECT_TRUE(same(read("\x80\x04\x8c\x01"
                        "a\x94h\x00\x86."s),
                   Tuple{{"a", "a"}}));
}

TEST(PickleReaderTest, CallsStayData) {
  EXPECT_TRUE(same(read("\x80\x02"
                        "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."s),
                   reduce(Global("os", "system"), {"ls"})));
  EXPECT_TRUE(same(read("\x80\x04\x8c\x02os\x8c\x06system\x93."s), Global("os", "system")));
  const Value instance_value = read(
      "\x80\x02"
      "cm\nC\n)\x81}X\x01\x00\x00\x00"
      "aK\x01sb."s);
  EXPECT_TRUE(same(instance_value, instance(Global("m", "C"), Dict{{{"a", 1}}})));
}

TEST(PickleReaderTest, KeywordArgumentsAndItemsOfObjectsAreKept) {
  const Value value = read(
      "\x80\x04"
      "cm\nC\nK\x01\x85}X\x01\x00\x00\x00kK\x02s\x92K\x03"
      "aK\x04K\x05s."s);
  const Object& object = *value.get<Object>();
  EXPECT_TRUE(same(object->args.at(0), 1));
  EXPECT_TRUE(same(object->kwargs.at(0).second, 2));
  EXPECT_TRUE(same(object->items.at(0), 3));
  EXPECT_TRUE(same(object->pairs.at(0).second, 5));
}

TEST(PickleReaderTest, CallsOfWhatIsNoNameStayData) {
  // getattr(...)(...), as some Pythons pickle enums.
  const Value value = read(
      "\x80\x02"
      "cb\ng\n)R)R."s);
  EXPECT_NE((*value.get<Object>())->callable.get<Object>(), nullptr);
}

TEST(PickleReaderTest, PlainValuesThatProtocol2SpellsAsCalls) {
  EXPECT_TRUE(same(read("\x80\x02"
                        "c_codecs\nencode\nX\x03\x00\x00\x00"
                        "a\xc3\xbfX\x06\x00\x00\x00latin1\x86R."s),
                   Bytes{"a\xff"}));
  EXPECT_TRUE(same(read("\x80\x02"
                        "c__builtin__\nset\n](K\x01K\x02"
                        "e\x85R."s),
                   Set{{1, 2}, false}));
  EXPECT_TRUE(same(read("\x80\x02"
                        "c__builtin__\nbytes\n)R."s),
                   Bytes{}));
}

TEST(PickleReaderTest, PersistentReferences) { EXPECT_TRUE(same(read("\x80\x02K\x05Q."s), Persistent{{5}})); }

TEST(PickleReaderTest, StackManipulation) {
  EXPECT_TRUE(same(read("\x80\x02K\x01K\x02"
                        "0."s),
                   1));
  EXPECT_TRUE(same(read("\x80\x02K\x01(K\x02K\x03"
                        "1."s),
                   1));
  EXPECT_TRUE(same(read("\x80\x02K\x01(0."s), 1));
  EXPECT_TRUE(same(read("\x80\x02K\x01"
                        "2\x86."s),
                   Tuple{{1, 1}}));
}

TEST(PickleReaderTest, RejectsOtherProtocols) {
  EXPECT_THAT(rejection(""), HasSubstr("not a pickle"));
  EXPECT_THAT(rejection("(lp0\nI1\na."), HasSubstr("not a pickle"));
  EXPECT_THAT(rejection("\x80\x06N."s), HasSubstr("protocol 6"));
  EXPECT_THAT(rejection("\x80\x01N."s), HasSubstr("protocol 1"));
}

TEST(PickleReaderTest, RejectsUnknownOpcodes) {
  // INT, PERSID, INST, OBJ, EXT1, NEXT_BUFFER: text forms, and opcodes that refer to something outside.
  for (const char* pickle : {"\x80\x02I1\n.", "\x80\x02Px\n.", "\x80\x02(im\nC\n.", "\x80\x02(o.",
                             "\x80\x02\x82\x01.", "\x80\x05\x97."}) {
    EXPECT_THAT(rejection(pickle), HasSubstr("unknown opcode")) << pickle;
  }
}

TEST(PickleReaderTest, RejectsAStackThatDoesNotMatch) {
  EXPECT_THAT(rejection("\x80\x02."s), HasSubstr("other than one value"));
  EXPECT_THAT(rejection("\x80\x02NN."s), HasSubstr("other than one value"));
  EXPECT_THAT(rejection("\x80\x02N(."s), HasSubstr("other than one value"));
  EXPECT_THAT(rejection("\x80\x02t."s), HasSubstr("a mark is missing"));
  EXPECT_THAT(rejection("\x80\x02\x85."s), HasSubstr("the stack is empty"));
  EXPECT_THAT(rejection("\x80\x02N(\x85."s), HasSubstr("the stack is empty"));
  EXPECT_THAT(rejection("\x80\x02}(K\x01u."s), HasSubstr("a key without a value"));
  EXPECT_THAT(rejection("\x80\x02NK\x01"
                        "a."s),
              HasSubstr("not a list"));
  EXPECT_THAT(rejection("\x80\x02]K\x01K\x02s."s), HasSubstr("not a dict"));
  EXPECT_THAT(rejection("\x80\x02NK\x01R."s), HasSubstr("not a tuple"));
  EXPECT_THAT(rejection("\x80\x02N}b."s), HasSubstr("without state"));
  EXPECT_THAT(rejection("\x80\x04}\x94h\x00K\x01"
                        "a."s),
              HasSubstr("not a list"));
  EXPECT_THAT(rejection("\x80\x04K\x05\x94h\x00K\x01Ns."s), HasSubstr("not a dict"));
  EXPECT_THAT(rejection("\x80\x04N\x94)h\x00R."s), HasSubstr("not a tuple"));
  EXPECT_THAT(rejection("\x80\x04N0\x94."s), HasSubstr("the stack is empty"));
  EXPECT_THAT(rejection("\x80\x02h\x07."s), HasSubstr("memo 7 was never set"));
  EXPECT_THAT(rejection("\x80\x04K\x01K\x02\x93."s), HasSubstr("not a string"));
}

TEST(PickleReaderTest, RejectsBytesBehindTheEnd) {
  EXPECT_THAT(rejection("\x80\x02N.N"s), HasSubstr("1 bytes follow"));
}

TEST(PickleReaderTest, RejectsLengthsBeyondTheInput) {
  EXPECT_THAT(rejection("\x80\x02X\xff\xff\xff\xffhi."s), HasSubstr("ends early"));
  EXPECT_THAT(rejection("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi."s), HasSubstr("ends early"));
  EXPECT_THAT(rejection("\x80\x02"
                        "cno newline."s),
              HasSubstr("ends early"));
}

TEST(PickleReaderTest, RejectsValuesThatContainThemselves) {
  EXPECT_THAT(rejection("\x80\x02]q\x00h\x00"
                        "a."s),
              HasSubstr("contain themselves"));
  EXPECT_THAT(rejection("\x80\x02]q\x00h\x00\x85"
                        "a."s),
              HasSubstr("contain themselves"));
  EXPECT_THAT(rejection("\x80\x02}q\x00K\x01h\x00s."s), HasSubstr("contain themselves"));
}

TEST(PickleReaderTest, RejectsDeepNesting) {
  std::string pickle = "\x80\x02"s + std::string(100'000, ']') + std::string(99'999, 'a') + ".";
  EXPECT_THAT(rejection(pickle), HasSubstr("nest deeper"));
}

TEST(PickleReaderTest, RejectsMoreValuesThanAllowed) {
  // Each line doubles: 2^40 values from a hundred bytes.
  std::string pickle = "\x80\x02)"s;
  for (int i = 0; i < 40; ++i) pickle += "2\x86";
  pickle += ".";
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] { (void)parse(bytes_of(pickle), {.depth = 200, .values = 100'000}); }),
              HasSubstr("more than 100000 values"));
}

TEST(PickleReaderTest, RejectsSmallPicklesOfLargeTrees) {
  // 2^22 values of 40 bytes or more from a hundred bytes, and a long text many times over.
  std::string values = "\x80\x02)"s;
  for (int i = 0; i < 22; ++i) values += "2\x86";
  EXPECT_THAT(rejection(values + "."), HasSubstr("would fill the memory"));
  std::string texts = "\x80\x02(X\x00\x00\x01\x00"s + std::string(65536, 'y') + "q\x00"s;
  for (int i = 0; i < 2000; ++i) texts += "h\x00"s;
  EXPECT_THAT(rejection(texts + "t."), HasSubstr("would fill the memory"));
}

TEST(PickleReaderTest, EveryTruncationIsAnError) {
  for (const std::string& pickle : {kNested4,
                                    "\x80\x02"
                                    "cm\nC\n)\x81}X\x01\x00\x00\x00"
                                    "aK\x01sb."s}) {
    EXPECT_NO_THROW((void)read(pickle));
    for (std::size_t size = 0; size < pickle.size(); ++size)
      EXPECT_THROW((void)read(pickle.substr(0, size)), Error) << size;
  }
}

TEST(PickleReaderTest, EveryFlippedBitIsReadOrRejected) {
  for (std::size_t bit = 0; bit < kNested4.size() * 8; ++bit) {
    std::string broken = kNested4;
    broken[bit / 8] = static_cast<char>(static_cast<unsigned char>(broken[bit / 8]) ^ (1U << (bit % 8)));
    expect_ok_or_error([&] { (void)read(broken); });
  }
}

}  // namespace
}  // namespace accel::ckpt::pickle
