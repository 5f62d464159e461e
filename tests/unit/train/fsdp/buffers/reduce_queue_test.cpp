#include "train/fsdp/buffers/reduce_queue.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/memory/step_memory.hpp"
#include "train/c10d/fake_backend.hpp"

namespace accel::train {
namespace {

/// The beginnings and ends of operations of one kind, in their order, and the numbers of buffers in them.
struct Operations {
  std::vector<std::int64_t> begun;
  std::vector<std::int64_t> ended;
  std::size_t most_open = 0;

  void begin(std::int64_t buffer) {
    begun.push_back(buffer);
    most_open = std::max(most_open, open());
  }
  [[nodiscard]] std::size_t open() const { return begun.size() - ended.size(); }
  [[nodiscard]] bool has_ended(std::int64_t buffer) const {
    return std::find(ended.begin(), ended.end(), buffer) != ended.end();
  }
};

class OpenWork final : public c10d::Work {
 public:
  explicit OpenWork(std::function<void()> end) : end_(std::move(end)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (end_) std::exchange(end_, nullptr)();
    return true;
  }

 private:
  std::function<void()> end_;
};

/// Buffer `i` has a shard of kShard * (i + 1) elements: by its size a backend knows a buffer.
constexpr std::int64_t kShard = 32;

/// A fake whose collectives are in progress until somebody waits for them.
class OpenBackend final : public FakeBackend {
 public:
  using FakeBackend::FakeBackend;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const std::int64_t buffer = tensors.front().numel() / kShard - 1;
    if (before_all_reduce) before_all_reduce(buffer);
    FakeBackend::allreduce(tensors, options);
    return open(all_reduces, buffer);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::ReduceScatterOptions& options) override {
    FakeBackend::_reduce_scatter_base(out, in, options);
    return open(reduce_scatters, out.numel() / kShard - 1);
  }

  Operations all_reduces;
  Operations reduce_scatters;
  std::function<void(std::int64_t)> before_all_reduce;

 private:
  static c10::intrusive_ptr<c10d::Work> open(Operations& operations, std::int64_t buffer) {
    operations.begin(buffer);
    return c10::make_intrusive<OpenWork>([&operations, buffer] { operations.ended.push_back(buffer); });
  }
};

/// An offloaded storage that counts the copies to it that nobody has waited for.
class CountingStorage final : public StorageDevice {
 public:
  CountingStorage() : StorageDevice(at::kCPU) {}
  [[nodiscard]] bool is_offloaded() const override { return true; }
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) override {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
  }
  std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from, const Conversion&) override {
    to.copy_(from);
    return std::make_unique<Copy>();
  }
  std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) override {
    to.copy_(from);
    stores.begin(to.numel() / kShard - 1);
    return std::make_unique<OpenCopy>(stores, stores.begun.back());
  }
  void synchronize() override {}

  Operations stores;

 private:
  class OpenCopy final : public Copy {
   public:
    OpenCopy(Operations& stores, std::int64_t buffer) : stores_(stores), buffer_(buffer) {}
    void wait_on_stream() override { stores_.ended.push_back(buffer_); }

   private:
    Operations& stores_;
    std::int64_t buffer_;
  };
};

c10::intrusive_ptr<OpenBackend> backend_of(int size) { return c10::make_intrusive<OpenBackend>(0, size); }

std::unique_ptr<Group> group_over(const c10::intrusive_ptr<OpenBackend>& backend) {
  return std::make_unique<Group>(Group::over(backend, at::kCPU));
}

/// The groups of a rank, with their backends.
struct Ranks {
  c10::intrusive_ptr<OpenBackend> all;
  c10::intrusive_ptr<OpenBackend> shards;
  c10::intrusive_ptr<OpenBackend> replicas;
  std::unique_ptr<Group> world;
  MeshGroups groups;

  explicit Ranks(const Mesh& mesh)
      : all(backend_of(mesh.size())),
        shards(backend_of(mesh.shards())),
        replicas(backend_of(mesh.replicas())),
        world(group_over(all)),
        groups(*world, mesh, group_over(shards), group_over(replicas), nullptr) {}
};

constexpr std::int64_t kBuffers = 5;
static_assert(kBuffers > static_cast<std::int64_t>(kMaxReducing + kMaxStoring));

class ReduceQueueTest : public ::testing::Test {
 protected:
  /// Makes buffer `index` of `mesh`, all of whose gradient is `index` + 1.
  FlatBuffer& add_buffer(std::int64_t index, const Mesh& mesh) {
    const std::int64_t numel = kShard * (index + 1) * mesh.shards();
    buffers_.push_back(std::make_unique<FlatBuffer>(make_flat_layout({{{"w"}, {numel}}}, 4, mesh),
                                                    BufferDtypes::all(at::kFloat), /*trainable=*/true, pool_,
                                                    storage_));
    EXPECT_EQ(buffers_.back()->layout().shard_numel, kShard * (index + 1));
    buffers_.back()->add_gradient(0, at::full({numel}, static_cast<double>(index + 1)));
    return *buffers_.back();
  }

  /// On a fake the mean over ranks is what this rank has.
  void expect_gradients() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      ASSERT_TRUE(buffers_[i]->gradient().defined()) << i;
      EXPECT_TRUE(buffers_[i]->gradient().eq(static_cast<double>(i) + 1).all().item<bool>()) << i;
    }
  }

  std::shared_ptr<BufferPool> pool_ = BufferPool::make(at::kCPU, /*poison=*/true);
  std::shared_ptr<StorageDevice> storage_ = StorageDevice::beside(at::kCPU);
  std::vector<std::unique_ptr<FlatBuffer>> buffers_;
};

using Numbers = std::vector<std::int64_t>;
const Numbers kInOrder = {0, 1, 2, 3, 4};

TEST_F(ReduceQueueTest, TwoReduceScattersAreUnderWayAndNoMore) {
  Ranks ranks(Mesh{1, 2});
  ReduceQueue queue(ranks.groups);
  for (std::int64_t i = 0; i < kBuffers; ++i) {
    queue.start(add_buffer(i, ranks.groups.mesh()));
    EXPECT_EQ(ranks.shards->reduce_scatters.open(), std::min<std::size_t>(buffers_.size(), kMaxReducing))
        << i;
  }
  queue.finish();
  EXPECT_EQ(ranks.shards->reduce_scatters.begun, kInOrder);
  EXPECT_EQ(ranks.shards->reduce_scatters.ended, kInOrder);
  EXPECT_EQ(ranks.shards->reduce_scatters.most_open, kMaxReducing);
  expect_gradients();
}

/// One gradient is computed while two are reduced.
TEST_F(ReduceQueueTest, UnshardedGradientsTakeThreeBlocksOfMemory) {
  Ranks ranks(Mesh{1, 2});
  ReduceQueue queue(ranks.groups);
  for (std::int64_t i = 0; i < kBuffers; ++i) queue.start(add_buffer(0, ranks.groups.mesh()));
  queue.finish();
  EXPECT_EQ(pool_->held_bytes(), (kMaxReducing + 1) * 2 * kShard * sizeof(float));
}

TEST_F(ReduceQueueTest, ReplicasAverageEachShardBehindItsReduceScatterWithoutALimit) {
  Ranks ranks(Mesh{2, 2});
  ReduceQueue queue(ranks.groups);
  ranks.replicas->before_all_reduce = [&](std::int64_t buffer) {
    EXPECT_TRUE(ranks.shards->reduce_scatters.has_ended(buffer)) << buffer;
  };
  for (std::int64_t i = 0; i < kBuffers; ++i) queue.start(add_buffer(i, ranks.groups.mesh()));
  EXPECT_EQ(ranks.replicas->all_reduces.open(), kBuffers - kMaxReducing);
  queue.finish();
  EXPECT_EQ(ranks.replicas->all_reduces.begun, kInOrder);
  EXPECT_EQ(ranks.replicas->all_reduces.ended, kInOrder);
  EXPECT_EQ(ranks.replicas->all_reduces.most_open, kBuffers);
  EXPECT_TRUE(ranks.all->all_reduces.begun.empty());
  expect_gradients();
}

TEST_F(ReduceQueueTest, WithOffloadingTwoAllReducesAndTwoCopiesAreUnderWay) {
  const auto storage = std::make_shared<CountingStorage>();
  storage_ = storage;
  Ranks ranks(Mesh{2, 2});
  ReduceQueue queue(ranks.groups);
  for (std::int64_t i = 0; i < kBuffers; ++i) queue.start(add_buffer(i, ranks.groups.mesh()));
  queue.finish();
  EXPECT_EQ(ranks.replicas->all_reduces.most_open, kMaxStoring);
  EXPECT_EQ(ranks.replicas->all_reduces.ended, kInOrder);
  EXPECT_EQ(storage->stores.begun, kInOrder);
  EXPECT_EQ(storage->stores.ended, kInOrder);
  // The copy that begins is one more, until the oldest has been waited for.
  EXPECT_LE(storage->stores.most_open, kMaxStoring + 1);
  EXPECT_GE(storage->stores.most_open, kMaxStoring);
  expect_gradients();
}

TEST_F(ReduceQueueTest, TwoAllReducesWithAHookAreUnderWay) {
  Ranks ranks(Mesh{2, 1});
  ReduceQueue queue(ranks.groups);
  const auto seeds = std::make_shared<NumpyRandom>(0);
  for (std::int64_t i = 0; i < kBuffers; ++i) {
    FlatBuffer& buffer = add_buffer(i, ranks.groups.mesh());
    buffer.set_comm_hook(CommHook::make({config::CommHookType::kBf16}, buffer.layout(), seeds));
    queue.start(buffer);
  }
  queue.finish();
  EXPECT_EQ(ranks.replicas->all_reduces.most_open, kMaxHooked);
  EXPECT_EQ(ranks.replicas->all_reduces.ended, kInOrder);
  EXPECT_TRUE(ranks.shards->reduce_scatters.begun.empty());
}

TEST_F(ReduceQueueTest, ReplicatedParametersHaveOneAllReduceOverAllRanks) {
  Ranks ranks(Mesh{2, 2});
  ReduceQueue queue(ranks.groups);
  queue.start(add_buffer(0, Mesh{}));
  queue.start(add_buffer(1, ranks.groups.mesh()));
  queue.start(add_buffer(2, Mesh{}));
  queue.finish();
  EXPECT_EQ(ranks.all->all_reduces.ended, (Numbers{0, 2}));
  EXPECT_EQ(ranks.replicas->all_reduces.ended, (Numbers{1}));
  EXPECT_EQ(ranks.shards->reduce_scatters.ended, (Numbers{1}));
  expect_gradients();
}

TEST_F(ReduceQueueTest, ARankThatIsAloneHasItsGradientAtOnce) {
  Ranks ranks(Mesh{});
  ReduceQueue queue(ranks.groups);
  queue.start(add_buffer(0, Mesh{}));
  expect_gradients();
  queue.finish();
  expect_gradients();
}

TEST_F(ReduceQueueTest, IsEmptyBehindFinish) {
  Ranks ranks(Mesh{2, 2});
  ReduceQueue queue(ranks.groups);
  queue.finish();
  for (int step = 0; step < 2; ++step) {
    for (std::int64_t i = 0; i < kBuffers; ++i) queue.start(add_buffer(i, ranks.groups.mesh()));
    queue.finish();
    expect_gradients();
    buffers_.clear();
  }
  queue.finish();
  EXPECT_EQ(ranks.shards->reduce_scatters.ended.size(), 2 * kBuffers);
}

}  // namespace
}  // namespace accel::train
