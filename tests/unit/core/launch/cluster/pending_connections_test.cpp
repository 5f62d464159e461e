#include "core/launch/cluster/pending_connections.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/log.hpp"
#include "core/launch/world/port.hpp"
#include "stub_peer.hpp"

namespace accel::launch {
namespace {

class PendingConnectionsTest : public ::testing::Test {
 protected:
  void connect(int count) {
    for (int i = 0; i < count; ++i) peers_.push_back(StubPeer::connected_to(port_.port()));
  }

  /// Waits for what may happen next and serves it.
  static void serve_once(PendingConnections& connections, int wait_ms = 20) {
    std::vector<pollfd> polls;
    connections.add_polls(polls);
    ::poll(polls.data(), polls.size(), wait_ms);
    connections.serve(polls, [](PendingConnection& pending) {
      pending.connection.pump();
      static_cast<void>(pending.connection.next());
    });
  }
  void serve_once() { serve_once(pending_); }

  /// How many descriptors are asked.
  [[nodiscard]] std::ptrdiff_t polled() const {
    std::vector<pollfd> polls;
    pending_.add_polls(polls);
    return std::count_if(polls.begin(), polls.end(), [](const pollfd& poll) { return poll.fd >= 0; });
  }

  PortHold port_ = PortHold::any();
  int accepted_ = 0;
  std::vector<std::string> dropped_;
  // What is not about time must not depend on it.
  PendingConnections pending_{
      listening_sockets("127.0.0.1", port_.port()),
      [this](PendingConnection&) { ++accepted_; },
      [this](const PendingConnection&, const std::string& why) { dropped_.push_back(why); },
      {16, std::chrono::hours(1), std::chrono::hours(1)}};
  std::vector<StubPeer> peers_;
};

TEST_F(PendingConnectionsTest, OthersWaitUntilTheOldestHasHadItsTime) {
  connect(20);
  serve_once();
  EXPECT_EQ(accepted_, 16);
  EXPECT_THAT(dropped_, ::testing::IsEmpty());
  EXPECT_EQ(polled(), 16);  // The listener is not asked, although connections wait there.
}

TEST_F(PendingConnectionsTest, TheirNumberMayChange) {
  connect(20);
  serve_once();
  pending_.set_most(18);
  serve_once();
  EXPECT_EQ(accepted_, 18);
  pending_.set_most(10);
  serve_once();
  EXPECT_EQ(accepted_, 18);
  EXPECT_THAT(dropped_, ::testing::IsEmpty());
}

TEST_F(PendingConnectionsTest, TheOldestGivesItsPlace) {
  std::vector<std::string> dropped;
  int accepted = 0;
  const PortHold port = PortHold::any();
  PendingConnections pending(
      listening_sockets("127.0.0.1", port.port()), [&](PendingConnection&) { ++accepted; },
      [&](const PendingConnection&, const std::string& why) { dropped.push_back(why); },
      {16, std::chrono::hours(1), std::chrono::milliseconds(1)});
  std::vector<StubPeer> peers;
  for (int i = 0; i < 20; ++i) peers.push_back(StubPeer::connected_to(port.port()));
  while (accepted < 20) serve_once(pending, 1);
  EXPECT_EQ(dropped, std::vector<std::string>(4, "others connect meanwhile"));
}

TEST_F(PendingConnectionsTest, OnlyWhatIsReadyIsServed) {
  connect(3);
  while (accepted_ < 3) serve_once();
  peers_[1].send_text("{}\n");
  std::vector<std::string> said;
  while (said.empty()) {
    std::vector<pollfd> polls;
    pending_.add_polls(polls);
    ::poll(polls.data(), polls.size(), 20);
    pending_.serve(polls, [&](PendingConnection& pending) {
      pending.connection.pump();
      while (const auto message = pending.connection.next()) said.push_back(message->dump());
      said.emplace_back("served");
    });
  }
  EXPECT_EQ(said, (std::vector<std::string>{"{}", "served"}));
}

TEST_F(PendingConnectionsTest, ANewConnectionIsServedAtOnce) {
  const PortHold port = PortHold::any();
  PendingConnections pending(
      listening_sockets("127.0.0.1", port.port()),
      [](PendingConnection& accepted) {
        accepted.connection.send({{"challenge", "x"}});
      },
      [](const PendingConnection&, const std::string&) {}, {});
  StubPeer peer = StubPeer::connected_to(port.port());
  serve_once(pending);
  EXPECT_EQ(peer.receive().at("challenge"), "x");
}

TEST_F(PendingConnectionsTest, AnEndedConnectionMakesRoomAtOnce) {
  connect(17);
  serve_once();
  peers_.front().close();
  while (accepted_ < 17) serve_once();
  EXPECT_THAT(dropped_, ::testing::IsEmpty());
}

TEST_F(PendingConnectionsTest, AConnectionEndsAfterItsTime) {
  std::vector<std::string> dropped;
  const PortHold port = PortHold::any();
  PendingConnections pending(
      listening_sockets("127.0.0.1", port.port()), [](PendingConnection&) {},
      [&](const PendingConnection&, const std::string& why) { dropped.push_back(why); },
      {16, std::chrono::milliseconds(1), std::chrono::hours(1)});
  StubPeer peer = StubPeer::connected_to(port.port());
  while (dropped.empty()) serve_once(pending, 1);
  EXPECT_EQ(dropped.front(), "it has not joined within 0.001 s");
  EXPECT_EQ(peer.receive(), nullptr);
}

TEST_F(PendingConnectionsTest, ALongLineEndsTheConnection) {
  connect(1);
  while (accepted_ < 1) serve_once();
  peers_[0].send_text(std::string(PendingConnections::kMostBytes + 1, 'x'));
  while (polled() > 1) serve_once();
  EXPECT_EQ(peers_[0].receive(), nullptr);
}

TEST_F(PendingConnectionsTest, WithoutDescriptorsTheOldestMakesRoom) {
  connect(5);
  std::string lines;
  const log::Redirect redirect([&](std::string_view line) { lines += line; });
  // UBSan looks through a pipe at an object whose type it sees for the first time.
  log::warn("before");
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = ::dup(0);
  ::close(next);
  const rlimit two_more{static_cast<rlim_t>(next + 2), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &two_more), 0);
  serve_once();
  const int first_accepted = accepted_;
  const std::ptrdiff_t polled_then = polled();
  for (int i = 0; i < 1000 && accepted_ < 5; ++i) serve_once();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(first_accepted, 2);
  // The oldest of two is gone, and the listener rests, so that a waiting connection does not wake poll().
  EXPECT_EQ(polled_then, 1);
  EXPECT_EQ(accepted_, 5);
  EXPECT_EQ(dropped_.front(), "its descriptor is needed");
  EXPECT_THAT(lines, ::testing::HasSubstr("a connection cannot be accepted: Too many open files"));
}

}  // namespace
}  // namespace accel::launch
