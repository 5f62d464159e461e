#include <gmock/gmock.h>

#include <optional>

#include "ckpt/pickle/document.hpp"
#include "ckpt/pickle/machine.hpp"
#include "ckpt/pickle/reader.hpp"
#include "ckpt/pickle/scan.hpp"
#include "helpers.hpp"

// A pickle that is run in two halves at once must be what it is when it is run as one, wherever it is cut.

namespace accel::ckpt::pickle {
namespace {

using namespace std::string_literals;
using ckpt::testing::bytes_of;
using ckpt::testing::error_of;

constexpr const char* kMemoize = "\x94";

std::string text(const std::string& value) { return "\x8c"s + static_cast<char>(value.size()) + value; }
std::string get(int index) { return "h"s + static_cast<char>(index); }

// Every opcode that builds, with values that are shared across all of it.
std::string rich_pickle() {
  std::string s = "\x80\x04}\x94("s;  // Memo 0: the dict.
  s += text("list") + kMemoize + "]\x94(K\x01K\x02(K\x03K\x04K\x05t\x94K\x06K\x07\x86\x85" + "e";  // 1 to 3
  s += text("object") + kMemoize + text("module") + kMemoize + text("Class") + kMemoize +
       "\x93\x94";                                                 // 4 to 7
  s += ")\x81\x94}\x94("s + get(1) + get(2) + get(4) + "K\x05ub";  // 8, 9
  s += text("record") + get(5) + text("Other") + kMemoize + "\x93)\x81}("s + get(1) + get(8) + get(4) + "Nub";
  s += text("call") + get(7) + "(K\x01K\x02" + get(3) + "t\x94R\x94";
  s += text("called again") + get(7) + get(11) + "R";
  s += text("two states") + get(7) + ")\x81}" + get(1) + "K\x01sb}" + get(4) + "K\x02sb";
  s += text("keywords") + get(7) + ")}" + get(1) + "NsK\x09" + "0" + "\x92";
  s += text("set") + "\x8f\x94(K\x01K\x02\x90" + text("frozen") + "(K\x01\x91";
  s += text("popped") + "K\x01" + "0" + "(K\x02K\x03" + "1" + "N" + text("twice") + "2";
  s += "u";
  s += text("batch") + get(2) + "K\x08" + "a(K\x09K\x0a" + "eN" + "0s";  // The list goes on.
  s += "(" + text("ordered") + "ccollections\nOrderedDict\n)R\x94(" + get(1) + get(6) + text("x") + "Nu";
  s += text("items") + get(7) + ")R(K\x01K\x02" + "eK\x03" + "a";
  s += text("numbers") +
       "(\x88\x89J\xff\xff\xff\x7f\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00"s +
       "\x00\x00\x00\x00M\x00\x01\x43\x02xyt"s;
  s += text("dict") + "(" + get(1) + get(2) + "d" + text("list of") + "(" + get(8) + get(8) + "l";
  s += text("stored") + "(" + text("storage") + get(6) + "tQ";
  return s + "u.";
}

Value whole(const std::string& pickle) { return parse(bytes_of(pickle)); }

Value in_halves(const std::string& pickle, const Scan& halves) {
  return tree_of(Document(run_machine(bytes_of(pickle), halves)).root(), {});
}

std::optional<Scan> halves_at(const std::string& pickle, std::size_t position) {
  return scan_halves(bytes_of(pickle), position);
}

TEST(PickleHalvesTest, AreTheSameWhereverTheyMeet) {
  const std::string pickle = rich_pickle();
  const Value expected = whole(pickle);
  std::size_t cuts = 0;
  for (std::size_t at = 2; at < pickle.size(); ++at) {
    const std::optional<Scan> halves = halves_at(pickle, at);
    if (!halves) continue;
    ASSERT_TRUE(halves->middle) << at;
    EXPECT_TRUE(same(in_halves(pickle, *halves), expected)) << "cut at byte " << at;
    ++cuts;
  }
  EXPECT_GT(cuts, 150U);
}

TEST(PickleHalvesTest, ShareWhatIsShared) {
  const std::string pickle = "\x80\x04(]\x94h\x00\x8c\x01z\x94h\x01h\x00t."s;
  for (std::size_t at = 2; at < pickle.size(); ++at) {
    const std::optional<Scan> halves = halves_at(pickle, at);
    if (!halves) continue;
    const Document document(run_machine(bytes_of(pickle), *halves));
    const NodeList items = *document.root().tuple();
    EXPECT_EQ(items[0].id(), items[1].id()) << at;
    EXPECT_EQ(items[0].id(), items[4].id()) << at;
    EXPECT_EQ(items[2].id(), items[3].id()) << at;
  }
}

TEST(PickleHalvesTest, ContainersThatEachFillsGrow) {
  std::string pickle = "\x80\x04]\x94]\x94(h\x00h\x01"s;
  pickle.insert(2, "(");
  for (int i = 0; i < 40; ++i) pickle += "h\x00K"s + static_cast<char>(i) + "K\x01K\x02" + "00a0";
  pickle += "t0" + get(1) + "(";
  for (int i = 0; i < 40; ++i) pickle += "(K"s + static_cast<char>(i) + "K\x01l";
  pickle += "e(" + get(0) + "e" + get(0) + "\x86t.";
  const Value expected = whole(pickle);
  for (std::size_t at = 2; at < pickle.size(); ++at) {
    const std::optional<Scan> halves = halves_at(pickle, at);
    if (halves) EXPECT_TRUE(same(in_halves(pickle, *halves), expected)) << "cut at byte " << at;
  }
}

TEST(PickleHalvesTest, FailAsTheWholeFails) {
  const std::vector<std::string> broken{
      "\x80\x04]\x94}\x94(K\x01K\x02K\x03u00NN."s,  // A key without a value,
      "\x80\x04K\x01\x94N0N0h\x00h\x00\x93."s,      // a name that is none,
      "\x80\x04}\x94N0N0h\x00K\x01"
      "a."s,                                   // a dict as a list,
      "\x80\x04K\x05\x94N0N0h\x00K\x01Nsb."s,  // a number as a dict,
      "\x80\x04N\x94N0N0)h\x00R."s,
      "\x80\x04NNN\x86\x85u."s,  // no tuple, no mark,
      "\x80\x04N0N00N."s,
      "\x80\x04NN0N0\x94\x94h\x02NN."s,  // nothing to pop, two values,
      "\x80\x04(NN\x86\x86\x86t."s,
      "\x80\x04NN0N0h\x05."s,            // beyond a mark, never set,
      "N\x94N0N0h\x00\x85."s,            // no PROTO,
      "\x80\x04}N0N0N0\x85."s + "rest",  // more than there should be.
  };
  for (const std::string& pickle : broken) {
    const std::string expected = error_of(ErrorKind::kCorrupt, [&] { (void)whole(pickle); });
    std::size_t cuts = 0;
    for (std::size_t at = 2; at < pickle.size(); ++at) {
      const std::optional<Scan> halves = halves_at(pickle, at);
      if (!halves) continue;
      ++cuts;
      EXPECT_EQ(error_of(ErrorKind::kCorrupt, [&] { (void)in_halves(pickle, *halves); }), expected)
          << "cut at byte " << at;
    }
    EXPECT_GT(cuts, 3U) << expected;
  }
}

TEST(PickleHalvesTest, AMemoThatIsSetByIndexHasNoHalves) {
  const std::string pickle =
      "\x80\x02]q\x00(h\x00K\x01"
      "e."s;
  std::size_t found = 0;
  for (std::size_t at = 2; at < pickle.size(); ++at) {
    const std::optional<Scan> halves = halves_at(pickle, at);
    if (!halves) continue;
    ++found;
    EXPECT_FALSE(halves->middle);
  }
  EXPECT_GT(found, 3U);
}

}  // namespace
}  // namespace accel::ckpt::pickle
