#include "train/c10d/gather_object.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "base/error.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

constexpr int kRounds = 20;
constexpr std::chrono::minutes kLong(5);

/// A client of a TCPStore that counts its requests.
class CountingStore final : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> inner) : inner_(std::move(inner)) {}

  using Store::set;
  void setTimeout(const std::chrono::milliseconds& timeout) override { inner_->setTimeout(timeout); }
  c10::intrusive_ptr<Store> clone() override { return inner_->clone(); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ++sets;
    inner_->set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override { return counted().get(key); }
  std::int64_t add(const std::string& key, std::int64_t value) override { return counted().add(key, value); }
  bool deleteKey(const std::string& key) override {
    ++deletes;
    return inner_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override { return counted().check(keys); }
  std::int64_t getNumKeys() override { return inner_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { counted().wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    counted().wait(keys, timeout);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return counted().multiGet(keys);
  }

  int sets = 0;
  int deletes = 0;
  int others = 0;

 private:
  Store& counted() {
    ++others;
    return *inner_;
  }

  c10::intrusive_ptr<Store> inner_;
};

c10::intrusive_ptr<CountingStore> client_of(int port, bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = kLong;
  return c10::make_intrusive<CountingStore>(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
}

class GatherObjectTest : public ::testing::TestWithParam<int> {};

TEST_P(GatherObjectTest, IsOneMessageARankAndLeavesNoKey) {
  const int size = GetParam();
  const int port = testing::test_port();
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<c10::intrusive_ptr<CountingStore>> stores;
  for (int rank = 0; rank < size; ++rank) stores.push_back(client_of(port, rank == 0));
  stores.front()->set("other", "value");
  const std::int64_t before = stores.front()->getNumKeys();
  stores.front()->sets = 0;

  const auto text = [](int round, int rank) {
    return rank == 2 ? std::string() : fmt::format("{} of {}", round, rank);
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const StoreGather ranks(*stores[static_cast<std::size_t>(rank)], rank, members, kLong);
      for (int round = 0; round < kRounds; ++round)
        EXPECT_TRUE(ranks.gather(round, text(round, rank)).empty());
    });
  }
  const StoreGather first(*stores.front(), 0, members, kLong);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::string> expected;
    for (int rank = 0; rank < size; ++rank) expected.push_back(text(round, rank));
    EXPECT_EQ(first.gather(round, text(round, 0)), expected);
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(stores.front()->getNumKeys(), before);
  for (int rank = 1; rank < size; ++rank) {
    const CountingStore& store = *stores[static_cast<std::size_t>(rank)];
    EXPECT_EQ(std::make_tuple(store.sets, store.deletes, store.others), std::make_tuple(kRounds, 0, 0));
  }
  const CountingStore& store = *stores.front();
  EXPECT_EQ(std::make_tuple(store.sets, store.deletes, store.others),
            std::make_tuple(0, kRounds * (size - 1), kRounds));
}

INSTANTIATE_TEST_SUITE_P(Sizes, GatherObjectTest, ::testing::Values(2, 3, 16),
                         [](const auto& tested) { return std::to_string(tested.param); });

TEST(GatherObjectTest, NamesTheRankThatDoesNotCome) {
  const int port = testing::test_port();
  const std::vector<int> members = {4, 5, 7};  // Numbers of the job.
  const std::chrono::seconds timeout(1);
  const auto own = client_of(port, true);
  const auto other = client_of(port, false);
  const std::int64_t before = own->getNumKeys();
  EXPECT_TRUE(StoreGather(*other, 1, members, kLong).gather(0, "come").empty());
  while (own->getNumKeys() == before) std::this_thread::yield();
  own->setTimeout(timeout);
  try {
    (void)StoreGather(*own, 0, members, timeout).gather(0, "");
    ADD_FAILURE() << "the third rank has not come";
  } catch (const Error& error) {
    EXPECT_TRUE(error.message().starts_with("rank 4 received nothing from rank 7 within 1 s: "))
        << error.message();
    EXPECT_EQ(error.advice(), "if the rank is slow and does not hang, raise launch.timeout");
  }
}

}  // namespace
}  // namespace accel::train
