#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ckpt/pickle/node.hpp"

namespace accel::ckpt::pickle {

/// What a pickle of dataclasses is read with. A Type and a Field remember the reference by which a document
/// spells them, as a pickle names a class or an attribute once and then refers to it; so one of them is for
/// one document.

/// "{what}, found {value}", as an Error (kCorrupt).
[[noreturn]] void reject(std::string_view what, NodeRef found);

/// The value as that, else an Error (kCorrupt) that names `what`.
[[nodiscard]] std::string_view require_text(NodeRef value, std::string_view what);
[[nodiscard]] std::uint64_t require_size(NodeRef value, std::string_view what);
[[nodiscard]] NodePairs require_mapping(NodeRef value, std::string_view what);

/// A class of this name, in the module `module`, or if that ends with a dot, in any that begins so.
class Type {
 public:
  constexpr Type(std::string_view module, std::string_view name) : module_(module), name_(name) {}

  /// Whether the value is made by calling the class.
  [[nodiscard]] bool is(NodeRef value);
  /// The __dict__ of an instance, empty if it has none; nothing if the value is something else.
  [[nodiscard]] std::optional<NodePairs> find(NodeRef value);
  /// As find; something else is an Error (kCorrupt).
  [[nodiscard]] NodePairs require(NodeRef value);

 private:
  std::string_view module_;
  std::string_view name_;
  Ref known_{};  // The class, as this document refers to it; None at first.
};

/// An attribute of the class `of`.
class Field {
 public:
  constexpr Field(std::string_view of, std::string_view name) : of_(of), name_(name) {}

  /// Its value in a __dict__, the last one as in Python.
  [[nodiscard]] std::optional<NodeRef> find(const NodePairs& pairs);
  /// As find; without one it is an Error (kCorrupt).
  [[nodiscard]] NodeRef require(const NodePairs& pairs);

 private:
  std::string_view of_;
  std::string_view name_;
  Ref known_{};                  // The name, as this document refers to it; None at first.
  std::array<Ref, 4> others_{};  // Names that are other ones; None is no name.
  std::size_t next_other_ = 0;
};

}  // namespace accel::ckpt::pickle
