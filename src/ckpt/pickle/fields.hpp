#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ckpt/pickle/node.hpp"

namespace accel::ckpt::pickle {

/// Tools to read a pickle of dataclasses. A pickle names a class or an attribute once and then refers to it.
/// A Type and a Field remember that reference, so each may be used for one document only.

/// Throws Error (kCorrupt) with the message "{what}, found {value}".
[[noreturn]] void reject(std::string_view what, NodeRef found);

/// The value as a text, a size or a mapping. Throws Error (kCorrupt), which names `what`, if it is something
/// else.
[[nodiscard]] std::string_view require_text(NodeRef value, std::string_view what);
[[nodiscard]] std::uint64_t require_size(NodeRef value, std::string_view what);
[[nodiscard]] NodePairs require_mapping(NodeRef value, std::string_view what);

/// A class of this name in the module `module`, or, if `module` ends with a dot, in any module that begins
/// with it.
class Type {
 public:
  constexpr Type(std::string_view module, std::string_view name) : module_(module), name_(name) {}

  /// Whether the value is made by calling the class.
  [[nodiscard]] bool is(NodeRef value);
  /// The __dict__ of an instance, which may be empty, or nothing if the value is something else.
  [[nodiscard]] std::optional<NodePairs> find(NodeRef value);
  /// The __dict__ of an instance. Throws Error (kCorrupt) if the value is something else.
  [[nodiscard]] NodePairs require(NodeRef value);

 private:
  std::string_view module_;
  std::string_view name_;
  Ref known_{};  // The reference to the class in the document; None at first.
};

/// An attribute of the class `of`.
class Field {
 public:
  constexpr Field(std::string_view of, std::string_view name) : of_(of), name_(name) {}

  /// The value of the attribute in a __dict__; the last one, as in Python, if there are several.
  [[nodiscard]] std::optional<NodeRef> find(const NodePairs& pairs);
  /// The value of the attribute. Throws Error (kCorrupt) if there is none.
  [[nodiscard]] NodeRef require(const NodePairs& pairs);

 private:
  std::string_view of_;
  std::string_view name_;
  Ref known_{};                  // The reference to the name in the document; None at first.
  std::array<Ref, 4> others_{};  // References to other names; None for no name.
  std::size_t next_other_ = 0;
};

}  // namespace accel::ckpt::pickle
