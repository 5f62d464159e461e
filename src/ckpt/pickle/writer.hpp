#pragma once

#include <memory>
#include <string>

#include "ckpt/pickle/value.hpp"

namespace accel::ckpt::pickle {

/// Writes `value` with protocol 2, in the opcodes that torch.save uses and torch.load(weights_only=True)
/// accepts. The length depends on the tree alone. Strings and names are written once and referred to
/// afterwards. Throws Error (kFailure) if the tree is deeper than a reader would accept, or if a string is
/// not UTF-8, which Python would refuse to read.
[[nodiscard]] std::string write(const Value& value);

/// As write(), piece by piece, so that a dict of a million entries never has to be there as a Value:
///
///   Writer writer;
///   writer.begin_dict();
///   for (...) {
///     writer.put(name);   // Key, value, key, value ...
///     writer.put(value);
///   }
///   writer.end_dict();
///   std::string pickle = writer.finish();
class Writer {
 public:
  Writer();
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

  void put(const Value& value);
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  /// An instance of `type`, whose __setstate__, or __dict__, gets the value that comes next.
  void begin_instance(const Global& type);
  void end_instance();
  /// The pickle; nothing may be put afterwards.
  [[nodiscard]] std::string finish();

 private:
  class Emitter;
  std::unique_ptr<Emitter> emitter_;
};

}  // namespace accel::ckpt::pickle
