#include "ckpt/dcp_metadata.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle_writer.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

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

// A checkpoint with one tensor `w` of shape [2, 3] in two rows, and one object `lr`; each part can be
// replaced.
struct Sample {
  Value properties = Tuple{{Global("torch", "float32"), None{}, false, None{}, false}};
  Value shape = size(Tuple{{2, 3}});
  Value chunks = List{{chunk(0), chunk(1)}};
  Value planner = Dict{{{"w", Tuple{{"m", "w"}}}, {"lr", Tuple{{"g", 0}}}}};
  Dict storage{
      {place("w", size(Tuple{{0, 0}}), 0), place("w", size(Tuple{{1, 0}}), 100), place("lr", None{}, 200)}};
  Value version = "1.0.0";
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
                 Dict{{{"properties", instance(Global(kModule, "TensorProperties"), properties)},
                       {"size", shape},
                       {"chunks", chunks}}});
    Dict fields{{{"state_dict_metadata", Dict{{{"w", tensor}, {"lr", object}}}},
                 {"planner_data", planner},
                 {"storage_data", storage}}};
    if (!old) fields.items.insert(fields.items.end(), {{"storage_meta", None{}}, {"version", version}});
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
  EXPECT_EQ(found.tensors[0].path, (StatePath{"m", "w"}));
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

TEST(DcpMetadataTest, RejectsBrokenTensors) {
  Sample sample;
  sample.properties = Tuple{{Global("torch", "float32"), None{}, false, None{}}};
  EXPECT_THAT(sample.rejection(), HasSubstr("'w': tensor properties"));
  sample.properties = Tuple{{Global("torch", "qint8"), None{}, false, None{}, false}};
  EXPECT_THAT(sample.rejection(), HasSubstr("unknown dtype, found torch.qint8"));
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
  EXPECT_THAT(sample.rejection(), HasSubstr("'lr': storage_data has no place for it"));
}

TEST(DcpMetadataTest, RejectsNegativePlaces) {
  Sample sample;
  sample.storage.items[0] = Sample::place("w", size(Tuple{{0, 0}}), -1);
  EXPECT_THAT(sample.rejection(), HasSubstr("offset is not a size, found -1"));
}

TEST(DcpMetadataTest, RejectsUnknownEntriesAndPaths) {
  Sample sample;
  sample.object = instance(Global("other", "Thing"), Dict{});
  EXPECT_THAT(sample.rejection(), HasSubstr("'lr': neither a tensor nor an object, found other.Thing"));
  sample = Sample();
  sample.planner = Dict{{{"w", Tuple{{1.5}}}}};
  EXPECT_THAT(sample.rejection(), HasSubstr("neither string nor integer"));
  sample = Sample();
  sample.version = 1;
  EXPECT_THAT(sample.rejection(), HasSubstr("version is not a string"));
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
