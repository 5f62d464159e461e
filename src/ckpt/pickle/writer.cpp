#include "ckpt/pickle/writer.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <type_traits>

#include "base/error.hpp"
#include "base/visible.hpp"
#include "ckpt/pickle/opcodes.hpp"
#include "ckpt/pickle/reader.hpp"

namespace accel::ckpt::pickle {
namespace {

// Python decodes every string of a pickle, and rejects the whole pickle if one is not UTF-8. It accepts lone
// surrogates ("surrogatepass").
void check_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_character(text.substr(at)).bytes;
    if (length == 0) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("a string has byte {:02x} at {}, where it is not UTF-8, and torch "
                              "would not read it",
                              static_cast<unsigned char>(text[at]), at));
    }
    at += length;
  }
}

}  // namespace

class Writer::Emitter {
 public:
  Emitter() {
    op(Op::kProto);
    number(2, 1);
  }

  std::string finish() {
    op(Op::kStop);
    return std::move(out_);
  }

  void emit(const Value& value, std::size_t depth) {
    if (depth > Limits{}.depth) throw Error(ErrorKind::kFailure, "a value nests too deeply to be pickled");
    std::visit([&](const auto& v) { emit_one(v, depth + 1); }, value.data());
  }

  void emit_shared(const std::string& key, const Value& value) {
    if (recall(key)) return;
    emit(value, 0);
    remember(key);
  }

  void emit_one(const Global& v, std::size_t) {
    const std::string key = fmt::format("g{}\n{}", v.module(), v.name());
    if (recall(key)) return;
    op(Op::kGlobal);
    out_ += fmt::format("{}\n{}\n", v.module(), v.name());
    remember(key);
  }

  void op(Op opcode) { out_ += static_cast<char>(opcode); }

 private:
  void emit_one(None, std::size_t) { op(Op::kNone); }
  void emit_one(bool v, std::size_t) { op(v ? Op::kNewTrue : Op::kNewFalse); }

  void emit_one(std::int64_t v, std::size_t) {
    if (v >= 0 && v <= 0xff) {
      op(Op::kBinInt1);
      number(static_cast<std::uint64_t>(v), 1);
    } else if (v >= 0 && v <= 0xffff) {
      op(Op::kBinInt2);
      number(static_cast<std::uint64_t>(v), 2);
    } else if (v >= std::numeric_limits<std::int32_t>::min() &&
               v <= std::numeric_limits<std::int32_t>::max()) {
      op(Op::kBinInt);
      number(static_cast<std::uint64_t>(v), 4);
    } else {
      emit_long(v);
    }
  }

  // Writes the fewest bytes that keep the sign, as Python does.
  void emit_long(std::int64_t v) {
    std::size_t width = 8;
    while (width > 1 && (v >> (8 * (width - 1) - 1) == 0 || v >> (8 * (width - 1) - 1) == -1)) --width;
    op(Op::kLong1);
    number(width, 1);
    number(static_cast<std::uint64_t>(v), width);
  }

  void emit_one(const BigInt& v, std::size_t) {
    if (v.bytes.size() > 0xff) throw Error(ErrorKind::kFailure, "an integer is too large to be pickled");
    op(Op::kLong1);
    number(v.bytes.size(), 1);
    out_ += v.bytes;
  }

  void emit_one(double v, std::size_t) {
    op(Op::kBinFloat);
    const auto bits = std::bit_cast<std::uint64_t>(v);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift & 0xffU);
  }

  void emit_one(const std::string& v, std::size_t) {
    if (recall("s" + v)) return;
    if (v.size() > 0xffffffffU) throw Error(ErrorKind::kFailure, "a string is too long to be pickled");
    check_utf8(v);
    op(Op::kBinUnicode);
    number(v.size(), 4);
    out_ += v;
    remember("s" + v);
  }

  // Protocol 2 has no opcode for bytes. This is the call that Python 3 writes.
  void emit_one(const Bytes& v, std::size_t depth) {
    std::string text;
    for (const char c : v.data) {
      const auto b = static_cast<unsigned char>(c);
      if (b < 0x80) {
        text += c;
      } else {
        text += static_cast<char>(0xc0U | b >> 6);
        text += static_cast<char>(0x80U | (b & 0x3fU));
      }
    }
    emit(reduce(Global("_codecs", "encode"), {Value(text), Value("latin1")}), depth);
  }

  void emit_one(const Tuple& v, std::size_t depth) { emit_tuple(v.items, depth); }

  void emit_one(const List& v, std::size_t depth) {
    op(Op::kEmptyList);
    emit_items(v.items, depth);
  }

  void emit_one(const Set& v, std::size_t depth) {
    emit(reduce(Global("__builtin__", v.frozen ? "frozenset" : "set"), {Value(List{v.items})}), depth);
  }

  void emit_one(const Dict& v, std::size_t depth) {
    op(Op::kEmptyDict);
    emit_pairs(v.items, depth);
  }

  void emit_one(const Object& v, std::size_t depth) {
    if (!v->kwargs.empty())
      throw Error(ErrorKind::kFailure, "keyword arguments cannot be pickled with protocol 2");
    emit(v->callable, depth);
    emit_tuple(v->args, depth);
    op(v->form == ObjectParts::Form::kReduce ? Op::kReduce : Op::kNewObj);
    emit_items(v->items, depth);
    emit_pairs(v->pairs, depth);
    for (const Value& state : v->states) {
      emit(state, depth);
      op(Op::kBuild);
    }
  }

  void emit_one(const Persistent& v, std::size_t depth) {
    emit(v.id.at(0), depth);
    op(Op::kBinPersId);
  }

  void emit_tuple(const Values& items, std::size_t depth) {
    if (items.empty()) {
      op(Op::kEmptyTuple);
      return;
    }
    if (items.size() > 3) op(Op::kMark);
    for (const Value& item : items) emit(item, depth);
    switch (items.size()) {
      case 1:
        op(Op::kTuple1);
        break;
      case 2:
        op(Op::kTuple2);
        break;
      case 3:
        op(Op::kTuple3);
        break;
      default:
        op(Op::kTuple);
    }
  }

  void emit_items(const Values& items, std::size_t depth) {
    if (items.empty()) return;
    op(Op::kMark);
    for (const Value& item : items) emit(item, depth);
    op(Op::kAppends);
  }

  void emit_pairs(const Pairs& pairs, std::size_t depth) {
    if (pairs.empty()) return;
    op(Op::kMark);
    for (const auto& [key, value] : pairs) {
      emit(key, depth);
      emit(value, depth);
    }
    op(Op::kSetItems);
  }

  bool recall(const std::string& key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return false;
    memo_op(found->second, Op::kBinGet, Op::kLongBinGet);
    return true;
  }

  void remember(const std::string& key) {
    const std::size_t index = memo_.size();
    memo_.emplace(key, index);
    memo_op(index, Op::kBinPut, Op::kLongBinPut);
  }

  void memo_op(std::size_t index, Op short_op, Op long_op) {
    op(index <= 0xff ? short_op : long_op);
    number(index, index <= 0xff ? 1 : 4);
  }

  void number(std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xffU);
  }

  std::string out_;
  std::map<std::string, std::size_t> memo_;
};

Writer::Writer() : emitter_(std::make_unique<Emitter>()) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

void Writer::put(const Value& value) { emitter_->emit(value, 0); }

void Writer::put_shared(const std::string& key, const Value& value) {
  emitter_->emit_shared("v" + key, value);
}

void Writer::begin_dict() {
  emitter_->op(Op::kEmptyDict);
  emitter_->op(Op::kMark);
}

void Writer::end_dict() { emitter_->op(Op::kSetItems); }

void Writer::begin_list() {
  emitter_->op(Op::kEmptyList);
  emitter_->op(Op::kMark);
}

void Writer::end_list() { emitter_->op(Op::kAppends); }

void Writer::begin_instance(const Global& type) {
  emitter_->emit_one(type, 0);
  emitter_->op(Op::kEmptyTuple);
  emitter_->op(Op::kNewObj);
}

void Writer::end_instance() { emitter_->op(Op::kBuild); }

std::string Writer::finish() { return emitter_->finish(); }

std::string write(const Value& value) {
  Writer writer;
  writer.put(value);
  return writer.finish();
}

}  // namespace accel::ckpt::pickle
