#pragma once

#include <memory>
#include <string>

#include "ckpt/pickle/value.hpp"

namespace accel::ckpt::pickle {

/// Writes `value` with protocol 2, in the opcodes that torch.save uses and torch.load(weights_only=True)
/// accepts. The length depends on the tree alone. Strings and names are written once and then referred to.
/// Throws Error (kFailure) if the tree is deeper than Limits::depth, or if a string is not UTF-8, which
/// Python rejects.
[[nodiscard]] std::string write(const Value& value);

/// Writes a pickle as write() does, piece by piece: a dict of a million entries need not exist as a Value.
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
  /// Puts `value` the first time, and afterwards a reference to it: whoever reads the pickle gets one object
  /// for all values of that key.
  void put_shared(const std::string& key, const Value& value);
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  /// Begins an instance of `type`, whose __setstate__ or __dict__ gets the next value.
  void begin_instance(const Global& type);
  void end_instance();
  /// Returns the pickle. Nothing may be put afterwards.
  [[nodiscard]] std::string finish();

 private:
  class Emitter;
  std::unique_ptr<Emitter> emitter_;
};

}  // namespace accel::ckpt::pickle
