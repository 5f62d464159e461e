#include "ckpt/convert/script_device.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/pickle/opcodes.hpp"
#include "ckpt/pickle/scan.hpp"

namespace accel::ckpt {
namespace {

using pickle::Argument;
using pickle::Op;
using Bytes = std::span<const std::byte>;

constexpr std::string_view kCpu = "cpu";

/// An opcode that pushes a string: BINUNICODE, or BINGET of one that has been pushed before.
struct PushedText {
  std::size_t position = 0;
  std::string text;
};

/// Calls `visit(op, position, argument)` for each opcode up to STOP.
template <class Visit>
void for_each_op(Bytes bytes, Visit&& visit) {
  for (std::size_t position = 0; position < bytes.size();) {
    const auto op = static_cast<Op>(bytes[position]);
    const Argument argument = pickle::argument_at(bytes, position);
    visit(op, position, argument);
    if (op == Op::kStop) return;
    position = argument.end;
  }
  throw_corrupt("the model's pickle has no end");
}

bool is_get(Op op) { return op == Op::kBinGet || op == Op::kLongBinGet; }
bool is_put(Op op) { return op == Op::kBinPut || op == Op::kLongBinPut; }

/// The positions of the opcodes that push the devices of the storages `keys`. A storage is the persistent id
/// ('storage', type, key, device, size).
std::set<std::size_t> devices_of(Bytes bytes, const std::set<std::string>& keys) {
  std::set<std::size_t> devices;
  std::vector<PushedText> pushed;  // The strings since the last MARK.
  std::map<std::uint64_t, std::string> memo;
  for_each_op(bytes, [&](Op op, std::size_t position, Argument argument) {
    if (op == Op::kMark) pushed.clear();
    if (op == Op::kBinUnicode) pushed.push_back({position, std::string(pickle::text_in(bytes, argument))});
    if (is_put(op) && !pushed.empty() && static_cast<Op>(bytes[pushed.back().position]) == Op::kBinUnicode &&
        pickle::argument_at(bytes, pushed.back().position).end == position)
      memo[pickle::number_in(bytes, argument)] = pushed.back().text;
    if (is_get(op)) {
      if (const auto text = memo.find(pickle::number_in(bytes, argument)); text != memo.end())
        pushed.push_back({position, text->second});
    }
    if (op != Op::kBinPersId) return;
    if (pushed.size() != 3 || pushed.front().text != "storage")
      throw Error(ErrorKind::kFailure, "the model's pickle does not describe storages as torch does");
    if (keys.contains(pushed[1].text)) devices.insert(pushed[2].position);
  });
  return devices;
}

std::string literal_of(std::string_view text) {
  std::string bytes(1, static_cast<char>(Op::kBinUnicode));
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>((text.size() >> shift) & 0xffU);
  return bytes.append(text);
}

}  // namespace

std::string with_storages_on_cpu(Bytes bytes, const std::set<std::string>& keys) {
  const std::set<std::size_t> devices = devices_of(bytes, keys);
  std::string result;
  // The strings of the memo, as they were and as they are in the result.
  std::map<std::uint64_t, std::pair<std::string, std::string>> memo;
  std::optional<std::pair<std::string, std::string>> last;  // What the opcode before has pushed.
  for_each_op(bytes, [&](Op op, std::size_t position, Argument argument) {
    const Bytes whole = bytes.subspan(position, argument.end - position);
    std::string out(reinterpret_cast<const char*>(whole.data()), whole.size());
    std::optional<std::pair<std::string, std::string>> now;
    if (op == Op::kBinUnicode) {
      const std::string was(pickle::text_in(bytes, argument));
      const std::string is = devices.contains(position) ? std::string(kCpu) : was;
      if (is != was) out = literal_of(is);
      now = {was, is};
    } else if (is_put(op) && last) {
      memo[pickle::number_in(bytes, argument)] = *last;
    } else if (is_get(op)) {
      if (const auto text = memo.find(pickle::number_in(bytes, argument)); text != memo.end()) {
        const std::string is = devices.contains(position) ? std::string(kCpu) : text->second.first;
        if (is != text->second.second) out = literal_of(is);
      }
    }
    result += out;
    last = std::move(now);
  });
  return result;
}

}  // namespace accel::ckpt
