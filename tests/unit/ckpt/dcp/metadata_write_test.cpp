#include "ckpt/dcp/metadata_write.hpp"

#include <gmock/gmock.h>

#include "ckpt/dcp/parse_metadata.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;

DcpItem chunk(const std::string& name, DType dtype, Dims shape, Box box) {
  return {{"model", name}, TensorChunk{dtype, std::move(shape), std::move(box)}};
}

TEST(DcpMetadataWriteTest, IsReadAsItWasPlanned) {
  std::vector<DcpRankPlan> plans;
  plans.push_back(plan_dcp_rank(0, {chunk("w.x", DType::kFloat8E4M3FN, {2, 3}, {{0, 0}, {1, 3}}),
                                    {{"groups", std::int64_t{0}, "lr"}, 0.5}}));
  plans.push_back(plan_dcp_rank(1, {chunk("w.x", DType::kFloat8E4M3FN, {2, 3}, {{1, 0}, {1, 3}}),
                                    chunk("empty", DType::kInt64, {0, 4}, Box::whole({0, 4}))}));
  const DcpMetadata found = parse_dcp_metadata(bytes_of(encode_dcp_metadata(plans)));
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.version, "1.0.0");
  EXPECT_EQ(found.tensors[0].fqn, "model.empty");
  EXPECT_EQ(found.tensors[0].position, 1U);
  const DcpTensor& x = found.tensors[1];
  EXPECT_EQ(x.path, (StatePath{"model", "w.x"}));
  EXPECT_EQ(x.dtype, DType::kFloat8E4M3FN);
  EXPECT_EQ(x.shape, (Dims{2, 3}));
  ASSERT_EQ(x.chunks.size(), 2U);
  EXPECT_EQ(x.chunks[1].box, (Box{{1, 0}, {1, 3}}));
  EXPECT_EQ(x.chunks[1].where.file(), "__1_0.distcp");
  EXPECT_EQ(x.chunks[1].where.length, plans[1].items[0].length);
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].fqn, "groups.0.lr");
  EXPECT_EQ(found.objects[0].path, (StatePath{"groups", std::int64_t{0}, "lr"}));
  EXPECT_EQ(found.objects[0].where.offset, plans[0].items[1].offset);
}

TEST(DcpMetadataWriteTest, RefusesWhatNoReaderCouldUse) {
  const auto rejection = [](std::vector<DcpItem> first, std::vector<DcpItem> second) {
    const std::vector<DcpRankPlan> plans{plan_dcp_rank(0, std::move(first)),
                                         plan_dcp_rank(1, std::move(second))};
    return error_of(ErrorKind::kFailure, [&] { (void)encode_dcp_metadata(plans); });
  };
  const DcpItem left = chunk("a", DType::kInt8, {4}, {{0}, {2}});
  const DcpItem right = chunk("a", DType::kInt8, {4}, {{2}, {2}});
  EXPECT_THAT(rejection({left}, {}), HasSubstr("cover 2 of 4"));
  EXPECT_THAT(rejection({left, right}, {right}), HasSubstr("overlap"));
  EXPECT_THAT(rejection({left}, {chunk("a", DType::kUInt8, {4}, {{2}, {2}})}), HasSubstr("dtype or shape"));
  EXPECT_THAT(rejection({left}, {{{"model", "a"}, 1}}), HasSubstr("an object on another"));
  EXPECT_THAT(rejection({{{"lr"}, 1}}, {{{"lr"}, 1}}), HasSubstr("one rank only"));
  EXPECT_THAT(rejection({left}, {{{"model.a"}, TensorChunk{DType::kInt8, {4}, {{2}, {2}}}}}),
              HasSubstr("two paths"));
}

}  // namespace
}  // namespace accel::ckpt
