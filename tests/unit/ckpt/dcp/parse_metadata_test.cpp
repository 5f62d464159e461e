#include "ckpt/dcp/parse_metadata.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/writer.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using namespace std::string_literals;
using pickle::Dict;
using pickle::Global;
using pickle::instance;
using pickle::List;
using pickle::None;
using pickle::Tuple;
using pickle::Value;
using testing::bytes_of;
using testing::error_of;
using testing::expect_ok_or_error;
using ::testing::HasSubstr;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";

Value size(Value dims) { return pickle::reduce(Global("torch", "Size"), {std::move(dims)}); }

// A checkpoint with one tensor `w` of shape [2, 3] in two rows, and one object `g.0`; each part can be
// replaced.
struct Sample {
  Value properties = Tuple{{Global("torch", "float32"), None{}, false, None{}, false}};
  Value shape = size(Tuple{{2, 3}});
  Value chunks = List{{chunk(0), chunk(1)}};
  Value planner = Dict{{{"w", Tuple{{"w"}}}, {"g.0", Tuple{{"g", 0}}}}};
  Dict storage{
      {place("w", size(Tuple{{0, 0}}), 0), place("w", size(Tuple{{1, 0}}), 100), place("g.0", None{}, 200)}};
  Value version = "1.0.0";
  Value whole_properties = None{};  // Replaces `properties` if it is not None.
  Value storage_meta = None{};
  pickle::Pairs extra = {};
  Value object = instance(Global(kModule, "BytesStorageMetadata"), Dict{});
  bool old = false;

  static Value chunk(int row) {
    return instance(Global(kModule, "ChunkStorageMetadata"),
                    Dict{{{"offsets", size(Tuple{{row, 0}})}, {"sizes", size(Tuple{{1, 3}})}}});
  }
  static std::pair<Value, Value> place(const char* fqn, Value offset, int at) {
    return {instance(Global(kModule, "MetadataIndex"),
                     Dict{{{"fqn", fqn}, {"index", 0}, {"offset", std::move(offset)}}}),
            instance(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                     Dict{{{"relative_path", "__0_0.distcp"}, {"offset", at}, {"length", 90}}})};
  }

  [[nodiscard]] std::string encode() const {
    const Value tensor =
        instance(Global(kModule, "TensorStorageMetadata"),
                 Dict{{{"properties", whole_properties.is_none()
                                          ? instance(Global(kModule, "TensorProperties"), properties)
                                          : whole_properties},
                       {"size", shape},
                       {"chunks", chunks}}});
    Dict fields{{{"state_dict_metadata", Dict{{{"w", tensor}, {"g.0", object}}}},
                 {"planner_data", planner},
                 {"storage_data", storage}}};
    if (!old) fields.items.insert(fields.items.end(), {{"storage_meta", storage_meta}, {"version", version}});
    fields.items.insert(fields.items.end(), extra.begin(), extra.end());
    return pickle::write(instance(Global(kModule, "Metadata"), fields));
  }
  [[nodiscard]] DcpMetadata parse() const { return parse_dcp_metadata(bytes_of(encode())); }
  [[nodiscard]] std::string rejection() const {
    return error_of(ErrorKind::kCorrupt, [&] { (void)parse(); });
  }
};

TEST(DcpMetadataTest, ReadsTensorsAndObjects) {
  const DcpMetadata found = Sample().parse();
  ASSERT_EQ(found.tensors.size(), 1U);
  EXPECT_EQ(found.tensors[0].path, StatePath{"w"});
  EXPECT_EQ(found.tensors[0].chunks[1].where.offset, 100U);
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].path, (StatePath{"g", std::int64_t{0}}));
}

TEST(DcpMetadataTest, ReadsSixProperties) {
  Sample sample;
  sample.properties = Tuple{{Global("torch", "bfloat16"), None{}, false, None{}, false, Tuple{{3, 1}}}};
  EXPECT_EQ(sample.parse().tensors[0].dtype, DType::kBFloat16);
}

TEST(DcpMetadataTest, ReadsTheThreeFieldsOfOldCheckpoints) {
  Sample sample;
  sample.old = true;
  sample.planner = None{};
  const DcpMetadata found = sample.parse();
  EXPECT_EQ(found.version, "");
  EXPECT_EQ(found.tensors[0].path, StatePath{"w"});
}

TEST(DcpMetadataTest, LeavesOutEmptyShards) {
  Sample sample;
  const Value empty = instance(Global(kModule, "ChunkStorageMetadata"),
                               Dict{{{"offsets", size(Tuple{{2, 0}})}, {"sizes", size(Tuple{{0, 3}})}}});
  sample.chunks = List{{Sample::chunk(0), Sample::chunk(1), empty, empty}};
  sample.storage.items.push_back(Sample::place("w", size(Tuple{{2, 0}}), 300));
  EXPECT_EQ(sample.parse().tensors[0].chunks.size(), 2U);
}

TEST(DcpMetadataTest, RejectsWhatIsNoMetadata) {
  const std::string pickle = pickle::write(Dict{{{"state_dict_metadata", 1}}});
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)parse_dcp_metadata(bytes_of(pickle)); }),
              HasSubstr("a Metadata is expected, found a dict of 1"));
}

TEST(DcpMetadataTest, ATensorOfAnUnknownTypeDoesNotHideTheOthers) {
  Sample sample;
  sample.properties = Tuple{{Global("torch", "float33"), None{}, false, None{}, false}};
  const DcpMetadata metadata = sample.parse();
  EXPECT_EQ(metadata.tensors.at(0).dtype, DType::kUnknown);
  EXPECT_EQ(metadata.tensors.at(0).unknown_dtype, "torch.float33");
}

TEST(DcpMetadataTest, RejectsBrokenTensors) {
  Sample sample;
  sample.properties = Tuple{{Global("torch", "float32"), None{}, false, None{}}};
  EXPECT_THAT(sample.rejection(), HasSubstr("'w': tensor properties"));
  sample.properties = Tuple{{Global("numpy", "float32"), None{}, false, None{}, false}};
  EXPECT_THAT(sample.rejection(), HasSubstr("a dtype is expected, found numpy.float32"));
  sample = Sample();
  sample.shape = size(Tuple{{2, -3}});
  EXPECT_THAT(sample.rejection(), HasSubstr("-3"));
  sample = Sample();
  sample.shape = size(Tuple{{1, 3}});
  EXPECT_THAT(sample.rejection(), HasSubstr("does not lie within shape [1, 3]"));
  sample = Sample();
  sample.shape = size(Tuple{{INT64_MAX, 3}});
  sample.chunks = List{{7}};
  EXPECT_THAT(sample.rejection(), HasSubstr("a ChunkStorageMetadata is expected, found 7"));
}

TEST(DcpMetadataTest, RejectsAChunkWithoutAPlace) {
  Sample sample;
  sample.storage.items.erase(sample.storage.items.begin() + 1);
  EXPECT_THAT(sample.rejection(), HasSubstr("no place for the chunk at [1, 0]"));
  sample = Sample();
  sample.storage.items.pop_back();
  EXPECT_THAT(sample.rejection(), HasSubstr("'g.0': storage_data has no place for it"));
}

TEST(DcpMetadataTest, RejectsNegativePlaces) {
  Sample sample;
  sample.storage.items[0] = Sample::place("w", size(Tuple{{0, 0}}), -1);
  EXPECT_THAT(sample.rejection(), HasSubstr("offset is not a size, found -1"));
}

TEST(DcpMetadataTest, RejectsUnknownEntriesAndPaths) {
  Sample sample;
  sample.object = instance(Global("other", "Thing"), Dict{});
  EXPECT_THAT(sample.rejection(), HasSubstr("'g.0': neither a tensor nor an object, found other.Thing"));
  sample = Sample();
  sample.planner = Dict{{{"w", Tuple{{1.5}}}}};
  EXPECT_THAT(sample.rejection(), HasSubstr("neither string nor integer"));
  sample.planner = Dict{{{"w", Tuple{{"v"}}}}};
  EXPECT_THAT(sample.rejection(), HasSubstr("'w': planner_data gives it the path 'v'"));
  sample.planner = Dict{{{"w", Tuple{{"w"}}}, {"h.0", Tuple{{"h", 0}}}}};
  EXPECT_THAT(sample.rejection(),
              HasSubstr("'g.0': planner_data has no path for it, but one for a name that is not"));
  sample.planner = Dict{{{"w", Tuple{{"w"}}}}};
  EXPECT_EQ(sample.parse().objects[0].path, StatePath{"g.0"});
  sample = Sample();
  sample.version = 1;
  EXPECT_THAT(sample.rejection(), HasSubstr("version is not a string"));
}

TEST(DcpMetadataTest, ReadsTheClassesOfOldVersions) {
  // torch 2.1 and 2.2 write properties of sharded tensors, whose memory format is an enum by value.
  const char* kOld = "torch.distributed._shard.sharded_tensor.metadata";
  const Value properties =
      instance(Global(kOld, "TensorProperties"),
               Tuple{{Global("torch", "float16"),
                      pickle::reduce(Global("torch.serialization", "_get_layout"), {"torch.strided"}), false,
                      pickle::reduce(Global(kOld, "MEM_FORMAT_ENCODING"), {0}), false}});
  // Some versions of Python write an enum by name: getattr(getattr(module, ...)).
  const Value by_name =
      instance(Global(kModule, "TensorProperties"),
               Tuple{{Global("torch", "int8"), None{}, true,
                      pickle::reduce(Global("builtins", "getattr"),
                                     {Global(kModule, "_MEM_FORMAT_ENCODING"), "TORCH_CONTIGUOUS_FORMAT"}),
                      true}});
  for (const auto& [value, dtype] :
       {std::pair(properties, DType::kFloat16), std::pair(by_name, DType::kInt8)}) {
    Sample sample;
    sample.whole_properties = value;
    EXPECT_EQ(sample.parse().tensors[0].dtype, dtype);
  }
}

TEST(DcpMetadataTest, WhatOnlyPythonNeedsMayBeAnything) {
  Sample sample;
  for (const char* module : {"pathlib", "pathlib._local"}) {
    for (const char* name : {"PosixPath", "WindowsPath"}) {
      sample.storage_meta = instance(
          Global(kModule, "StorageMeta"),
          Dict{{{"checkpoint_id", pickle::reduce(Global(module, name), {"/a", "b"})}, {"modules", List{}}}});
      EXPECT_EQ(sample.parse().tensors.size(), 1U);
    }
  }
  // Unknown classes, more attributes, more planner data than entries, and places without entries.
  sample.extra = {
      {"mcore_data", instance(Global("megatron.core", "Thing"), Dict{{{"a", Tuple{{1, None{}}}}}})}};
  sample.storage.items.push_back(Sample::place("gone", size(Tuple{{7}}), 0));
  sample.storage.items[0].second = instance(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                                            Dict{{{"relative_path", "a"},
                                                  {"offset", 0},
                                                  {"length", 1},
                                                  {"transform_descriptors", None{}},
                                                  {"x", 1}}});
  sample.planner = Dict{{{"w", List{{"w"}}}, {"g.0", Tuple{{"g", 0}}}, {"nobody", Tuple{{"x"}}}}};
  const DcpMetadata found = sample.parse();
  EXPECT_EQ(found.tensors[0].path, StatePath{"w"});
  EXPECT_EQ(found.tensors[0].chunks[0].where.file(), "a");
}

TEST(DcpMetadataTest, PlacesMayComeInAnyOrderAndTheLastCounts) {
  Sample sample;
  sample.storage = Dict{{Sample::place("g.0", None{}, 1), Sample::place("w", size(Tuple{{1, 0}}), 2),
                         Sample::place("g.0", None{}, 3), Sample::place("w", size(Tuple{{0, 0}}), 4),
                         Sample::place("w", size(Tuple{{1, 0}}), 5)}};
  const DcpMetadata found = sample.parse();
  EXPECT_EQ(found.tensors[0].chunks[0].where.offset, 4U);
  EXPECT_EQ(found.tensors[0].chunks[1].where.offset, 5U);
  EXPECT_EQ(found.objects[0].where.offset, 3U);
}

TEST(DcpMetadataTest, RejectsSharedPartsThatWouldFillTheMemory) {
  // 2,000 tensors share one list of 20,000 chunks: 40 million chunks from a megabyte or two.
  std::string p = "\x80\x02"s;
  const auto text = [](const std::string& t) {
    return "X"s + static_cast<char>(t.size() & 0xff) + static_cast<char>(t.size() >> 8) + "\0\0"s + t;
  };
  const auto make = [](const std::string& name) { return "c"s + kModule + "\n" + name + "\n)\x81}("; };
  const std::string zero = "ctorch\nSize\nK\x00K\x00\x86\x85R"s;
  p += "]q\x00("s + make("ChunkStorageMetadata") + text("offsets") + zero + text("sizes") + zero + "ubq\x01";
  for (int i = 1; i < 20'000; ++i) p += "h\x01"s;
  p += "e0" + make("TensorStorageMetadata") + text("properties") + "c"s + kModule +
       "\nTensorProperties\n)\x81(ctorch\nint8\nNNNNtb" + text("size") + zero + text("chunks") +
       "h\x00ubq\x02"s;
  p += "0" + make("Metadata") + text("state_dict_metadata") + "}(";
  std::string storage = "}(";
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "t" + std::to_string(i);
    p += text(name) + "h\x02"s;
    storage += make("MetadataIndex") + text("fqn") + text(name) + text("offset") + zero + "ub" +
               "ctorch.x\n_StorageInfo\n)\x81}(" + text("relative_path") + text("f") + text("offset") +
               "K\x00"s + text("length") + "K\x01ub";
  }
  p += "u" + text("planner_data") + "N" + text("storage_data") + storage + "uub.";
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)parse_dcp_metadata(bytes_of(p)); }),
              HasSubstr("would fill the memory"));
}

TEST(DcpMetadataTest, ReadsWhatProtocolFourSpellsOtherwise) {
  // The bytes of pickle.dumps(Metadata({"w": TensorStorageMetadata(TensorProperties(torch.int8),
  // torch.Size([2]), [ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))])}, None, {MetadataIndex("w",
  // [0], 0): _StorageInfo("f", 0, 9)}), 4) in Python, without its last two fields.
  std::string p = "\x80\x04"s;
  const auto text = [](const std::string& t) { return "\x8c"s + static_cast<char>(t.size()) + t + "\x94"; };
  const auto global = [&](const std::string& module, const std::string& name) {
    return text(module) + text(name) + "\x93\x94";
  };
  const auto make = [&](const std::string& name) { return global(kModule, name) + ")\x81\x94}\x94("; };
  const auto dims = [&](const std::string& n) {
    return global("torch", "Size") + "K"s + n + "\x85\x94\x85\x94R\x94";
  };
  p += make("Metadata") + text("state_dict_metadata") + "}\x94" + text("w") + make("TensorStorageMetadata") +
       text("properties") + global(kModule, "TensorProperties") + ")\x81\x94(" + global("torch", "int8") +
       "N\x89"s + global(kModule, "_MEM_FORMAT_ENCODING") + "K\x00\x85\x94R\x94\x89t\x94"s + "b" +
       text("size") + dims("\x02") + text("chunks") + "]\x94" + make("ChunkStorageMetadata") +
       text("offsets") + dims("\0"s) + text("sizes") + dims("\x02") + "uba" + "ubs" + text("planner_data") +
       "N" + text("storage_data") + "}\x94" + make("MetadataIndex") + text("fqn") + text("w") +
       text("index") + "K\0"s + text("offset") + dims("\0"s) + "ub" +
       global("torch.distributed.checkpoint.filesystem", "_StorageInfo") + ")\x81\x94}\x94(" +
       text("relative_path") + text("f") + text("offset") + "K\0"s + text("length") + "K\x09ubsub.";
  const DcpMetadata found = parse_dcp_metadata(bytes_of(p));
  ASSERT_EQ(found.tensors.size(), 1U);
  EXPECT_EQ(found.tensors[0].dtype, DType::kInt8);
  EXPECT_EQ(found.tensors[0].chunks[0].box, (Box{{0}, {2}}));
  EXPECT_EQ(found.tensors[0].chunks[0].where.length, 9U);
}

// Two threads read a `.metadata` of a megabyte or more.
class LargeDcpMetadataTest : public ::testing::Test {
 protected:
  static constexpr int kRows = 500;

  LargeDcpMetadataTest() {
    sample_.shape = size(Tuple{{kRows, 3}});
    List chunks;
    sample_.storage.items.clear();
    for (int row = 0; row < kRows; ++row) {
      chunks.items.push_back(Sample::chunk(row));
      sample_.storage.items.push_back(Sample::place("w", size(Tuple{{row, 0}}), 100 * row));
    }
    sample_.storage.items.push_back(Sample::place("g.0", None{}, 7));
    sample_.chunks = std::move(chunks);
    sample_.storage_meta = std::string(std::size_t{1} << 20, 'x');
  }

  Sample sample_;
};

TEST_F(LargeDcpMetadataTest, ReadsEveryChunkAndItsPlace) {
  ASSERT_GT(sample_.encode().size(), std::size_t{1} << 20);
  const DcpMetadata found = sample_.parse();
  ASSERT_EQ(found.tensors.size(), 1U);
  ASSERT_EQ(found.tensors[0].chunks.size(), std::size_t{kRows});
  for (int row = 0; row < kRows; ++row) {
    const DcpChunk chunk = found.tensors[0].chunks[static_cast<std::size_t>(row)];
    ASSERT_EQ(chunk.box, (Box{{row, 0}, {1, 3}}));
    ASSERT_EQ(chunk.where.offset, 100U * static_cast<unsigned>(row));
  }
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].where.offset, 7U);
}

TEST_F(LargeDcpMetadataTest, NamesWhatIsWrongOnEitherThread) {
  Sample shape = sample_;
  shape.shape = size(Tuple{{kRows - 1, 3}});
  EXPECT_THAT(shape.rejection(), HasSubstr("'w': "));
  Sample place = sample_;
  place.storage.items[5].second = 3;
  EXPECT_THAT(place.rejection(), HasSubstr("a _StorageInfo is expected, found 3"));
  Sample both = shape;
  both.storage.items[5].second = 3;
  EXPECT_EQ(both.rejection(), place.rejection());
  Sample missing = sample_;
  missing.storage.items.erase(missing.storage.items.begin() + 5);
  EXPECT_THAT(missing.rejection(), HasSubstr("'w': storage_data has no place for the chunk at [5, 0]"));
}

TEST(DcpMetadataTest, EveryTruncationIsAnError) {
  const std::string good = Sample().encode();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW((void)parse_dcp_metadata(bytes_of(good.substr(0, size))), Error) << size;
  }
}

TEST(DcpMetadataTest, EveryFlippedBitIsReadOrRejected) {
  const std::string good = Sample().encode();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string broken = good;
    broken[bit / 8] = static_cast<char>(static_cast<unsigned char>(broken[bit / 8]) ^ (1U << (bit % 8)));
    expect_ok_or_error([&] { (void)parse_dcp_metadata(bytes_of(broken)); });
  }
}

}  // namespace
}  // namespace accel::ckpt
