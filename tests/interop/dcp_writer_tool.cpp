// Writes a fixed checkpoint with our writer, for the interop tests: a model split over ranks by flat ranges
// of each tensor, as the trainer does it, and an optimizer's objects beside it.
//
//   dcp-writer-tool DIRECTORY RANKS
//
// Element i of the tensor with seed s has the bits of the integer (s + i) % 100 in the tensor's type.

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/dcp/rank_write.hpp"

namespace {

using namespace accel::ckpt;

struct Tensor {
  std::string name;
  DType dtype;
  Dims shape;
  int seed;
};

const std::vector<Tensor> kTensors = {
    {"wte.weight", DType::kFloat32, {11, 6}, 1}, {"h.0.attn.weight", DType::kFloat32, {5, 3, 4}, 2},
    {"h.0.norm", DType::kInt64, {7}, 3},         {"scalar", DType::kFloat32, {}, 4},
    {"empty", DType::kFloat32, {0, 3}, 5},       {"one_row", DType::kInt32, {1, 9}, 6},
    {"bytes", DType::kUInt8, {3, 33}, 7},        {"wide", DType::kUInt16, {2, 17}, 8},
    {"four", DType::kFloat64, {2, 3, 2, 3}, 9},  {"fp8", DType::kFloat8E4M3FN, {4, 5}, 10},
    {"flags", DType::kBool, {3, 3}, 11},         {"half", DType::kBFloat16, {6, 5}, 12},
};

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

std::string payload(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  std::string out;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto value = static_cast<int>((tensor.seed + i) % 100);
    switch (tensor.dtype) {
      case DType::kFloat32:
        put(out, static_cast<float>(value));
        break;
      case DType::kFloat64:
        put(out, static_cast<double>(value));
        break;
      case DType::kInt64:
        put(out, std::int64_t{value});
        break;
      case DType::kInt32:
        put(out, std::int32_t{value});
        break;
      case DType::kUInt16:
        put(out, static_cast<std::uint16_t>(value));
        break;
      case DType::kBool:
        put(out, static_cast<std::uint8_t>(value % 2));
        break;
      case DType::kBFloat16: {
        const auto exact = static_cast<float>(value);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &exact, sizeof(bits));
        put(out, static_cast<std::uint16_t>(bits >> 16));
        break;
      }
      default:
        put(out, static_cast<std::uint8_t>(value));
        break;
    }
  }
  return out;
}

std::vector<DcpItem> optimizer_objects() {
  using pickle::Dict;
  using pickle::List;
  using pickle::None;
  using pickle::Tuple;
  const auto group = [](const char* key, pickle::Value value) {
    return DcpItem{{"optimizer", "param_groups", std::int64_t{0}, key}, std::move(value)};
  };
  return {group("lr", 0.001),
          group("betas", Tuple{{0.9, 0.95}}),
          group("params", List{{"wte.weight", "h.0.norm"}}),
          group("foreach", None{}),
          group("maximize", false),
          group("large", std::int64_t{1} << 40),
          group("nested", Dict{{{"a", 1}, {2, List{{"b"}}}}})};
}

void write(const std::filesystem::path& directory, int ranks) {
  std::filesystem::create_directories(directory);
  std::vector<DcpRankPlan> plans;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<DcpItem> items;
    std::vector<std::string> payloads;
    for (const Tensor& tensor : kTensors) {
      const std::int64_t numel = accel::checked_numel(tensor.shape);
      std::int64_t at = numel * rank / ranks;
      std::vector<Box> boxes = boxes_of_range(tensor.shape, at, numel * (rank + 1) / ranks);
      if (numel == 0 && rank == 0) boxes.push_back(Box::whole(tensor.shape));
      for (Box& box : boxes) {
        payloads.push_back(payload(tensor, at, at + box.numel()));
        at += box.numel();
        items.push_back({{"model", tensor.name}, TensorChunk{tensor.dtype, tensor.shape, std::move(box)}});
      }
    }
    if (rank == 0) {
      for (DcpItem& item : optimizer_objects()) items.push_back(std::move(item));
    }
    plans.push_back(plan_dcp_rank(rank, std::move(items)));
    write_dcp_rank(directory, plans.back(),
                   [&](std::size_t i) { return std::as_bytes(std::span(payloads.at(i))); });
  }
  write_dcp_metadata(directory, plans);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    write(argv[1], std::stoi(argv[2]));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
