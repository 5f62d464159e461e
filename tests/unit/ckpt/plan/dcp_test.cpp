#include "ckpt/plan/dcp.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/read/openers.hpp"
#include "opened.hpp"
#include "output_helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::read_tensor;
using testing::state_of;
using testing::TempDir;
using testing::Truth;

RC_GTEST_PROP(PlanDcpTest, IsReadAsItWasGiven, ()) {
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 9)));
    const DType dtype = *rc::gen::element(DType::kBool, DType::kBFloat16, DType::kUInt16, DType::kComplex128);
    truths.push_back(
        Truth::make({"model", "h." + std::to_string(i)}, dtype, shape, 100U * static_cast<unsigned>(i)));
  }
  OutputState state = state_of(truths);
  state.objects.push_back({{"groups", std::int64_t{0}, "lr"}, 0.5});
  const int ranks = *rc::gen::inRange(1, 9);
  const TempDir dir;
  const OutputPlan plan = plan_dcp(state, ranks);
  RC_ASSERT(plan.files.size() == static_cast<std::size_t>(ranks) + 1);
  RC_ASSERT(plan.files.back().name == ".metadata");
  testing::write_plan(dir.path(), plan, truths);

  const auto checkpoint = open_dcp(dir.path());
  RC_ASSERT(checkpoint->tensors().size() == truths.size());
  for (std::size_t i = 0; i < truths.size(); ++i) {
    RC_ASSERT(checkpoint->tensors()[i].path == truths[i].path);
    RC_ASSERT(read_tensor(*checkpoint, fqn_of(truths[i].path)) == truths[i].data);
  }
  RC_ASSERT(checkpoint->objects().size() == 1U);
  RC_ASSERT(checkpoint->objects()[0].path == (StatePath{"groups", std::int64_t{0}, "lr"}));
  RC_ASSERT(pickle::same(checkpoint->read_object(0), pickle::Value(0.5)));
}

TEST(PlanDcpTest, SplitsRowsAsTorchChunkDoes) {
  const std::vector<Truth> truths{Truth::make({"m", "w"}, DType::kInt8, {5, 3}, 1),
                                  Truth::make({"m", "scalar"}, DType::kInt8, {}, 2)};
  const TempDir dir;
  testing::write_plan(dir.path(), plan_dcp(state_of(truths), 4), truths);
  const DcpMetadata metadata = read_dcp_metadata(dir.path());
  ASSERT_EQ(metadata.tensors.size(), 2U);
  ASSERT_EQ(metadata.tensors[1].fqn, "m.w");
  std::vector<std::string> chunks;
  for (const DcpChunk chunk : metadata.tensors[1].chunks) {
    chunks.push_back(to_string(chunk.box) + " " + std::string(chunk.where.file()));
  }
  EXPECT_EQ(chunks, (std::vector<std::string>{"[0:2, 0:3] __0_0.distcp", "[2:4, 0:3] __1_0.distcp",
                                              "[4:5, 0:3] __2_0.distcp"}));
  EXPECT_EQ(metadata.tensors[0].chunks[0].where.file(), "__0_0.distcp");
  EXPECT_EQ(std::filesystem::file_size(dir / "__3_0.distcp"), 0U);
}

TEST(PlanDcpTest, IsTheFileThatTheTrainersWriterWrites) {
  const std::vector<Truth> truths{Truth::make({"m", "w"}, DType::kFloat32, {5, 3}, 1),
                                  Truth::make({"m", "v"}, DType::kFloat8E4M3FN, {7}, 2)};
  OutputState state = state_of(truths);
  state.objects.push_back({{"lr"}, 0.5});
  const TempDir dir;
  testing::write_plan(dir / "plan", plan_dcp(state, 1), truths);
  testing::write_checkpoint(dir / "writer", truths,
                            {{{0, Box::whole(truths[0].shape)}, {1, Box::whole(truths[1].shape)}}},
                            {{{"lr"}, 0.5}});
  for (const char* name : {"__0_0.distcp", ".metadata"}) {
    EXPECT_EQ(testing::read_file(dir / "plan" / name), testing::read_file(dir / "writer" / name)) << name;
  }
}

TEST(PlanDcpTest, RefusesObjectsWithTensorsAndNoRanks) {
  const pickle::Value tensor = pickle::Persistent{{pickle::Value("x")}};
  const pickle::Value holders[] = {
      tensor, pickle::Tuple{{tensor}}, pickle::Dict{{{pickle::Value("k"), tensor}}},
      pickle::reduce(pickle::Global("torch._utils", "_rebuild_tensor_v2"), {tensor})};
  for (const pickle::Value& value : holders) {
    EXPECT_THAT(error_of(ErrorKind::kFailure,
                         [&] {
                           (void)plan_dcp({{}, {{{"extra"}, value}}}, 1);
                         }),
                HasSubstr("'extra' contains a tensor"));
  }
  EXPECT_THAT(error_of(ErrorKind::kUsage, [] { (void)plan_dcp({}, -1); }), HasSubstr("-1 ranks"));
}

}  // namespace
}  // namespace accel::ckpt
