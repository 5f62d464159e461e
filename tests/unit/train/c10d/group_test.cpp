#include "train/c10d/group.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "base/error.hpp"
#include "ranks_as_threads.hpp"
#include "temp_dir.hpp"
#include "test_port.hpp"
#include "train/c10d/numeric_names.hpp"
#include "train/device/read_numbers.hpp"
#include "train/loop/agreement.hpp"

namespace accel::train {
namespace {

/// Runs `body` as two ranks, each on a thread of its own. `local` of them count as ranks of this machine.
void on_two_ranks(int port, const std::function<void(Group&)>& body,
                  config::Backend backend = config::Backend::kGloo, int local = 2) {
  const auto run = [&](int number) {
    Rank rank;
    rank.rank = number;
    rank.world_size = 2;
    rank.local_world_size = local;
    rank.master_port = port;
    Group group = Group::connect(rank, backend, at::kCPU);
    body(group);
    group.barrier();
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

void expect_collectives(Group& group) {
  const int rank = group.rank();
  at::Tensor gathered = at::empty({4});
  group.all_gather(gathered, at::full({2}, rank + 1.0)).wait();
  EXPECT_TRUE(at::equal(gathered, at::tensor({1.0F, 1.0F, 2.0F, 2.0F})));

  at::Tensor mean = at::empty({1});
  group.reduce_scatter_mean(mean, at::tensor({2.0F * static_cast<float>(rank), 10.0F})).wait();
  EXPECT_FLOAT_EQ(mean.item<float>(), rank == 0 ? 1.0F : 10.0F);

  const auto parts_of = [](std::int64_t first, std::int64_t second) {
    return at::tensor({first, first + 1, second, second + 1}, at::kLong).to(at::kBFloat16).reshape({2, 2});
  };
  const at::Tensor exchanged = at::empty({2, 2}, at::kBFloat16);
  group.all_to_all(exchanged, parts_of(0, 2) + 10 * rank).wait();
  EXPECT_TRUE(at::equal(exchanged, rank == 0 ? parts_of(0, 10) : parts_of(2, 12)));

  std::array<double, 2> sums = {1.0 + rank, 0.5};
  group.all_reduce_sum(sums);
  EXPECT_EQ(sums, (std::array<double, 2>{3.0, 1.0}));

  const std::vector<std::byte> sent(static_cast<std::size_t>(3 * rank), std::byte{7});
  const auto from_all = group.all_gather_bytes(sent);
  EXPECT_EQ(from_all, (std::vector<std::vector<std::byte>>{{}, std::vector<std::byte>(3, std::byte{7})}));
  EXPECT_EQ(group.all_gather_bytes({}), std::vector<std::vector<std::byte>>(2));

  at::Tensor scattered = at::empty({2}, at::kBFloat16);
  std::vector<at::Tensor> parts;
  if (rank == 0) parts = {at::full({2}, 5, at::kBFloat16), at::full({2}, 6, at::kBFloat16)};
  group.scatter(scattered, parts);
  EXPECT_TRUE(at::equal(scattered, at::full({2}, rank + 5, at::kBFloat16)));
  const at::Tensor flags = at::full({2, 3}, rank == 0, at::kBool).t();
  group.broadcast(flags);
  EXPECT_TRUE(flags.all().item<bool>());
  const at::Tensor number = at::full({}, rank + 7, at::kLong);
  group.broadcast(number);
  EXPECT_EQ(number.item<int>(), 7);
  const std::vector<std::byte> bytes(rank == 0 ? 1000 : 3, static_cast<std::byte>(rank + 1));
  EXPECT_EQ(group.broadcast_bytes(bytes), std::vector<std::byte>(1000, std::byte{1}));
  EXPECT_TRUE(group.broadcast_bytes({}).empty());

  EXPECT_EQ(group.all_gather_object(rank == 0 ? "a" : "b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(group.all_gather_object(""), (std::vector<std::string>{"", ""}));
  const std::vector<std::string> both = {"a", "b"};
  EXPECT_EQ(group.gather_object(rank == 0 ? "a" : "b"), rank == 0 ? both : std::vector<std::string>());
}

TEST(GroupTest, CollectivesOverGloo) {
  on_two_ranks(testing::test_port(), [](Group& group) {
    EXPECT_EQ(group.backend_name(), "gloo");
    expect_collectives(group);
  });
}

TEST(GroupTest, CollectivesOverSharedMemory) {
  on_two_ranks(
      testing::test_port(),
      [](Group& group) {
        EXPECT_EQ(group.backend_name(), "shm");
        expect_collectives(group);
      },
      config::Backend::kShm);
}

TEST(GroupTest, AutoOnCpuSharesMemoryIfAllRanksAreOnThisMachine) {
  for (const auto& each : {std::pair{2, "shm"}, {1, "gloo"}, {0, "gloo"}}) {
    on_two_ranks(
        testing::test_port(), [&](Group& group) { EXPECT_EQ(group.backend_name(), each.second); },
        config::Backend::kAuto, each.first);
  }
}

TEST(GroupTest, SharedMemoryIsRefusedWhereItCannotBe) {
  Rank rank;
  rank.world_size = 1;
  EXPECT_NO_THROW(Group::connect(rank, config::Backend::kShm, at::kCPU));
  const auto refusal = [](int port, int local, at::Device device) {
    Rank two;
    two.world_size = 2;
    two.local_world_size = local;
    two.master_port = port;
    try {
      Group::connect(two, config::Backend::kShm, device);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refusal(testing::test_port(), 1, at::kCPU),
            "backend: shm needs all 2 ranks on one machine, found 1 on this one");
  EXPECT_EQ(refusal(testing::test_port(), 2, {at::kCUDA, 0}),
            "backend: shm is for CPU ranks, and this one has a GPU");
}

/// A backend of two ranks whose wait() returns at once, as NCCL's does.
class Enqueuing : public c10d::Backend {
 public:
  explicit Enqueuing(std::string name) : Backend(0, 2), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& /*out*/, at::Tensor& /*in*/,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    return c10::make_intrusive<Enqueued>();
  }

 private:
  struct Enqueued : c10d::Work {
    bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  };
  std::string name_;
};

TEST(GroupTest, ACollectiveOfAnAcceleratorIsOpenInTheFlightRecordUntilTheHostHasWaitedForTheGpu) {
  const accel::testing::TempDir directory;
  const auto path = directory / "rank_0.flight";
  ASSERT_TRUE(create_flight_record(path, 0));
  ::setenv(kFlightVariable, path.c_str(), 1);
  flight::open();
  ::unsetenv(kFlightVariable);
  const auto gather = [](const char* backend) {
    Group group = Group::over(c10::make_intrusive<Enqueuing>(backend), at::kCPU);
    group.all_gather(at::empty({2}), at::empty({1})).wait();
  };
  for (const char* backend : {"gloo", "shm", "fake", "nccl", "xccl"}) gather(backend);
  // Its values cannot be read, as after an error of a GPU.
  const at::Tensor elsewhere = at::empty({}, at::TensorOptions().device(at::kMeta));
  EXPECT_ANY_THROW((void)read_numbers(std::array{elsewhere}));
  (void)read_numbers(std::array{at::ones({})});
  auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  ASSERT_EQ(record->events.size(), 6U);
  for (int i : {0, 1, 2}) EXPECT_NE(record->events[i].ended_ns, 0);
  for (int i : {3, 4}) {
    EXPECT_NE(record->events[i].waited_ns, 0);
    EXPECT_EQ(record->events[i].ended_ns, 0);
  }
  EXPECT_EQ(record->events[5].op, FlightOp::kHostSync);
  { const flight::HostSync sync(true); }
  record = read_flight_record(path);
  ASSERT_TRUE(record);
  for (int i : {3, 4}) EXPECT_NE(record->events[i].ended_ns, 0);
}

TEST(FingerprintTest, RanksThatDisagreeSayInWhat) {
  on_two_ranks(testing::test_port(), [](Group& group) {
    const ModelStructure model{{{"", "Net"}}, {{{"w"}, {2, 3}, "float32"}}};
    EXPECT_NO_THROW(require_agreement(group, {}, model, "100"));
    try {
      require_agreement(group, {}, model, std::to_string(100 + group.rank()));
      ADD_FAILURE() << "the sizes of the data differ";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "rank 1 and rank 0 disagree on the training data");
    }
    ModelStructure other = model;
    other.parameters[0].shape[1] += group.rank();
    EXPECT_THROW(require_agreement(group, {}, other, "100"), Error);
  });
}

// libtorch would ask DNS for every rank that connects, which may take seconds.
TEST(GroupTest, AddressesStayNumbersWhileGroupsConnect) {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(80);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  const auto look_up = [&] {
    return ::getnameinfo(reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback, host.data(),
                         host.size(), service.data(), service.size(), NI_NAMEREQD);
  };
  {
    const NumericNames numeric_names;
    // The store serves the others on a thread of its own.
    ASSERT_EQ(std::async(std::launch::async, look_up).get(), 0);
    EXPECT_STREQ(host.data(), "127.0.0.1");
    EXPECT_STREQ(service.data(), "80");
  }
  // Otherwise the system gives a name, or says that it knows none.
  EXPECT_TRUE(look_up() != 0 || std::string_view(host.data()) != "127.0.0.1") << host.data();
}

TEST(GroupTest, OneRankNeedsNoBackend) {
  Group group = Group::connect({}, config::Backend::kAuto, at::kCPU);
  at::Tensor out = at::empty({2});
  group.all_gather(out, at::ones({2})).wait();
  EXPECT_TRUE(at::equal(out, at::ones({2})));
  EXPECT_EQ(group.all_gather_object("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(group.gather_object("x"), std::vector<std::string>{"x"});
}

TEST(RankTest, ComesFromTorchrunsVariables) {
  for (const auto& [name, value] : {std::pair{"RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"LOCAL_RANK", "0"},
                                    {"MASTER_ADDR", "n1"},
                                    {"MASTER_PORT", "29501"}}) {
    ::setenv(name, value, 1);
  }
  EXPECT_EQ(Rank::from_environment().local_world_size, 0);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  const Rank rank = Rank::from_environment();
  EXPECT_EQ(rank.local_world_size, 2);
  EXPECT_EQ(rank.rank, 1);
  EXPECT_EQ(rank.world_size, 2);
  EXPECT_EQ(rank.master_addr, "n1");
  EXPECT_EQ(rank.master_port, 29501);
  ::setenv("RANK", "2", 1);
  EXPECT_THROW(Rank::from_environment(), Error);
  ::setenv("RANK", "one", 1);
  EXPECT_THROW(Rank::from_environment(), Error);
  ::unsetenv("RANK");
  EXPECT_THROW(Rank::from_environment(), Error);
}

/// Returns what rank 0 throws in `wait`, to which rank 1 does not come. All time-outs are the same.
std::string error_of_waiting(config::Backend backend, const std::function<void(Group&)>& wait) {
  const int port = testing::test_port();
  std::atomic<bool> done = false;
  std::string error;
  const auto run = [&](int number) {
    Rank rank;
    rank.rank = number;
    rank.world_size = 2;
    rank.local_world_size = 2;
    rank.master_port = port;
    Group group = Group::connect(rank, backend, at::kCPU, std::chrono::seconds(2));
    group.barrier();
    if (number == 1) {
      while (!done) std::this_thread::yield();
      return;
    }
    try {
      wait(group);
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    done = true;
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return error;
}

TEST(GroupTest, OneTimeoutIsForStringsAndForCollectivesOfEveryBackend) {
  const auto start = std::chrono::steady_clock::now();
  const std::string strings =
      error_of_waiting(config::Backend::kShm, [](Group& group) { (void)group.all_gather_object("x"); });
  EXPECT_TRUE(strings.starts_with("rank 0 received nothing from rank 1 within 2 s: ")) << strings;
  const std::string gathered =
      error_of_waiting(config::Backend::kShm, [](Group& group) { (void)group.gather_object("x"); });
  EXPECT_TRUE(gathered.starts_with("rank 0 received nothing from rank 1 within 2 s: ")) << gathered;
  const std::string shm = error_of_waiting(config::Backend::kShm, [](Group& group) { group.barrier(); });
  EXPECT_NE(shm.find("rank 1 did not come within 2 s"), std::string::npos) << shm;
  EXPECT_NE(error_of_waiting(config::Backend::kGloo, [](Group& group) { group.barrier(); }), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace accel::train
