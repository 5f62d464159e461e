#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "core/config/config.hpp"

namespace accel::config {

/// The names of each enum of config.hpp, as Accelerate's YAML writes them.
template <class Enum>
struct EnumNames;

template <>
struct EnumNames<DistributedType> {
  static constexpr std::array<std::pair<DistributedType, std::string_view>, 4> kTable = {{
      {DistributedType::kNo, "NO"},
      {DistributedType::kMultiCpu, "MULTI_CPU"},
      {DistributedType::kMultiGpu, "MULTI_GPU"},
      {DistributedType::kFsdp, "FSDP"},
  }};
};

template <>
struct EnumNames<WrapPolicy> {
  static constexpr std::array<std::pair<WrapPolicy, std::string_view>, 3> kTable = {{
      {WrapPolicy::kTransformer, "TRANSFORMER_BASED_WRAP"},
      {WrapPolicy::kSize, "SIZE_BASED_WRAP"},
      {WrapPolicy::kNone, "NO_WRAP"},
  }};
};

template <>
struct EnumNames<StateDictType> {
  static constexpr std::array<std::pair<StateDictType, std::string_view>, 3> kTable = {{
      {StateDictType::kSharded, "SHARDED_STATE_DICT"},
      {StateDictType::kFull, "FULL_STATE_DICT"},
      {StateDictType::kLocal, "LOCAL_STATE_DICT"},
  }};
};

template <>
struct EnumNames<VerifyOnResume> {
  static constexpr std::array<std::pair<VerifyOnResume, std::string_view>, 3> kTable = {{
      {VerifyOnResume::kAuto, "auto"},
      {VerifyOnResume::kFull, "full"},
      {VerifyOnResume::kNone, "none"},
  }};
};

template <>
struct EnumNames<Backend> {
  static constexpr std::array<std::pair<Backend, std::string_view>, 5> kTable = {{
      {Backend::kAuto, "auto"},
      {Backend::kNccl, "nccl"},
      {Backend::kGloo, "gloo"},
      {Backend::kShm, "shm"},
      {Backend::kFake, "fake"},
  }};
};

template <>
struct EnumNames<CommHookType> {
  static constexpr std::array<std::pair<CommHookType, std::string_view>, 4> kTable = {{
      {CommHookType::kNo, "no"},
      {CommHookType::kFp16, "fp16"},
      {CommHookType::kBf16, "bf16"},
      {CommHookType::kPowerSgd, "power_sgd"},
  }};
};

template <>
struct EnumNames<Float8Recipe> {
  static constexpr std::array<std::pair<Float8Recipe, std::string_view>, 3> kTable = {{
      {Float8Recipe::kTensorwise, "tensorwise"},
      {Float8Recipe::kRowwise, "rowwise"},
      {Float8Recipe::kRowwiseWithGwHp, "rowwise_with_gw_hp"},
  }};
};

template <class Enum>
constexpr std::string_view name_of(Enum value) {
  for (const auto& [candidate, name] : EnumNames<Enum>::kTable) {
    if (candidate == value) return name;
  }
  return {};
}

template <class Enum>
constexpr std::optional<Enum> enum_named(std::string_view text) {
  for (const auto& [value, name] : EnumNames<Enum>::kTable) {
    if (name == text) return value;
  }
  return std::nullopt;
}

}  // namespace accel::config
