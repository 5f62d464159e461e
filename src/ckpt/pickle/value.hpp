#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accel::ckpt::pickle {

class Value;

using Values = std::vector<Value>;
/// Key and value pairs in the order of the pickle; keys need not be strings.
using Pairs = std::vector<std::pair<Value, Value>>;

struct None {};

/// An integer that does not fit 64 bits, as little-endian two's complement.
struct BigInt {
  std::string bytes;
};

struct Bytes {
  std::string data;
};

struct Tuple {
  Values items;
};

struct List {
  Values items;
};

struct Set {
  Values items;
  bool frozen = false;
};

struct Dict {
  Pairs items;
};

/// The name of a class or function that a pickle refers to. It is never looked up and never called.
class Global {
 public:
  Global(std::string_view module, std::string_view name);

  [[nodiscard]] std::string_view module() const { return std::string_view(text_).substr(0, module_size_); }
  [[nodiscard]] std::string_view name() const { return std::string_view(text_).substr(module_size_ + 1); }
  /// Module and name, such as "torch.storage.UntypedStorage".
  [[nodiscard]] const std::string& qualified() const { return text_; }

  friend bool operator==(const Global&, const Global&) = default;

 private:
  // Both in one string: a tree has many values, and each is as large as the largest alternative.
  std::string text_;
  std::size_t module_size_;
};

struct ObjectParts;

/// An object that a pickle builds with a call. The call is kept as data.
class Object {
 public:
  explicit Object(ObjectParts parts);

  [[nodiscard]] const ObjectParts& operator*() const { return *parts_; }
  [[nodiscard]] const ObjectParts* operator->() const { return parts_.get(); }

 private:
  std::shared_ptr<const ObjectParts> parts_;
};

/// A reference to something outside the pickle. torch refers to storages in this way.
struct Persistent {
  Values id;  ///< The id is a single value.
};

/// A pickle as a tree of plain values. Shared parts are copied, and nothing is executed.
class Value {
 public:
  using Variant = std::variant<None, bool, std::int64_t, BigInt, double, std::string, Bytes, Tuple, List, Set,
                               Dict, Global, Object, Persistent>;

  Value() = default;
  Value(None) {}  // NOLINT: every alternative converts
  Value(bool v) : data_(v) {}
  Value(int v) : data_(std::int64_t{v}) {}
  Value(std::int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(const char* v) : data_(std::string(v)) {}
  Value(std::string_view v) : data_(std::string(v)) {}
  Value(std::string v) : data_(std::move(v)) {}
  Value(BigInt v) : data_(std::move(v)) {}
  Value(Bytes v) : data_(std::move(v)) {}
  Value(Tuple v) : data_(std::move(v)) {}
  Value(List v) : data_(std::move(v)) {}
  Value(Set v) : data_(std::move(v)) {}
  Value(Dict v) : data_(std::move(v)) {}
  Value(Global v) : data_(std::move(v)) {}
  Value(Object v) : data_(std::move(v)) {}
  Value(Persistent v) : data_(std::move(v)) {}

  /// The alternative T, or nullptr if the value is something else.
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] const Variant& data() const { return data_; }
  [[nodiscard]] Variant& data() { return data_; }

 private:
  Variant data_;
};

struct ObjectParts {
  enum class Form {
    kReduce,  ///< The value is callable(*args).
    kNew,     ///< The value is callable.__new__(callable, *args, **kwargs).
  };
  Form form = Form::kReduce;
  Value callable;  ///< The callable is almost always a Global.
  Values args;
  Pairs kwargs;
  Values states;  ///< Arguments of __setstate__, in order; usually none or one.
  Values items;   ///< Items that are appended afterwards, as to a list.
  Pairs pairs;    ///< Entries that are set afterwards, as in a dict.
};

/// The object that callable(*args) builds, as __reduce__ says.
[[nodiscard]] Value reduce(Global callable, Values args);
/// An instance whose __setstate__, or __dict__, gets `state`.
[[nodiscard]] Value instance(Global type, Value state);

/// The object's parts if the value is an Object of that class or function, else nullptr.
[[nodiscard]] const ObjectParts* object_of(const Value& value, std::string_view module,
                                           std::string_view name);

/// The pairs of a dict or an OrderedDict, else nullptr.
[[nodiscard]] const Pairs* mapping_of(const Value& value);
/// The items of a tuple or a list, else nullptr.
[[nodiscard]] const Values* sequence_of(const Value& value);

/// The attributes in the state of an instance, else nullptr. The state is the instance's __dict__, or for a
/// class with slots the tuple (__dict__, slots), of which the slots are returned.
[[nodiscard]] const Pairs* attributes_of(const Value& state);

/// The value of the string key `key`, or nullptr. If the key comes twice, the last value counts, as in
/// Python.
[[nodiscard]] const Value* find(const Pairs& pairs, std::string_view key);

/// Whether `test` holds for a part of a container or an object: an item, the key or the value of an entry,
/// the callable, an argument or a state. The id of a Persistent is not a part. Stops at the first.
[[nodiscard]] bool any_part(const Value& value, const std::function<bool(const Value&)>& test);

/// A short text for messages: "a dict of 3", "torch.Size(...)".
[[nodiscard]] std::string describe(const Value& value);

/// Whether two trees are the same; NaN equals NaN, and -0.0 does not equal 0.0.
[[nodiscard]] bool same(const Value& a, const Value& b);

}  // namespace accel::ckpt::pickle
