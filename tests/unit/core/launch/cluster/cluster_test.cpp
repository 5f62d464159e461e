#include "core/launch/cluster/cluster.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/files/flight_record.hpp"
#include "core/launch/cluster/heartbeats.hpp"
#include "stub_peer.hpp"

namespace accel::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::pair<Fd, Fd> ends() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

Connection connection_at(Fd socket, Connection::Now now = Connection::Clock::now) {
  return Connection(std::move(socket), Connection::kLongestMessage, std::move(now));
}

Members member_at(Fd socket, Connection::Now now = Connection::Clock::now) {
  Members members;
  members.emplace(1, Member{connection_at(std::move(socket), std::move(now)), "node02", "10.0.0.2", 1, 0});
  return members;
}

/// Reads as a launcher does until `done` or the end of the run, and returns what was asked for.
template <class Done>
PeerRequest serve_until(Cluster& cluster, const Done& done) {
  PeerRequest request;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (!done(request) && std::chrono::steady_clock::now() < until) {
    const PeerRequest news = cluster.serve();
    request.looks |= news.looks;
    request.ends_now |= news.ends_now;
    if (news.signal != 0) request.signal = news.signal;
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(done(request));
  return request;
}

// The other side would have lost this machine if serve() sent the heartbeats.
TEST(ClusterTest, HeartbeatsAreSentWhileTheLauncherIsBusy) {
  auto [a, b] = ends();
  const auto leader = lead(member_at(std::move(a)), "node01", {100ms});
  StubPeer there(std::move(b));
  for (int i = 0; i < 10; ++i) EXPECT_GE(there.receive().value("beat", -1), 0);
}

TEST(ClusterTest, AFollowerSendsHeartbeatsUntilItsConnectionIsReleased) {
  auto [a, b] = ends();
  const auto follower = follow(Connection(std::move(a)), "node02", "machine 0", {100ms});
  StubPeer there(std::move(b));
  for (int i = 0; i < 10; ++i) EXPECT_GE(there.receive().value("beat", -1), 0);
  Members leader = follower->release();
  ASSERT_EQ(leader.size(), 1U);
  leader.begin()->second.connection.send({{"last", true}});
  leader.begin()->second.connection.flush();
  leader.clear();
  nlohmann::json last;
  for (nlohmann::json message = there.receive(); !message.is_null(); message = there.receive())
    last = message;
  EXPECT_EQ(last, nlohmann::json({{"last", true}}));
}

TEST(ClusterTest, AMachineWithoutHeartbeatsIsLost) {
  auto [a, b] = ends();
  Connection::Clock::time_point now;
  const auto leader = lead(member_at(std::move(a), [&now] { return now; }), "node01", {300ms});
  now += 299ms;
  EXPECT_FALSE(leader->serve().ends_now);
  now += 1ms;
  EXPECT_TRUE(leader->serve().ends_now);
  leader->on_end({});
  ASSERT_TRUE(leader->end());
  EXPECT_EQ(leader->end()->report,
            "machine 1 (node02 at 10.0.0.2) is lost: no heartbeat from its launcher for 0.3 s "
            "(launch.heartbeat_timeout)");
}

// What has arrived while this launcher was busy shows that the other one lives.
TEST(ClusterTest, ALauncherThatWasBusyReadsBeforeItJudges) {
  auto [a, b] = ends();
  Connection::Clock::time_point now;
  const auto leader = lead(member_at(std::move(a), [&now] { return now; }), "node01", {1s});
  StubPeer there(std::move(b));
  now += 1200ms;
  there.send({{"beat", 0}, {"silent_ms", 0}});
  EXPECT_FALSE(leader->serve().ends_now);
}

TEST(ClusterTest, AHeartbeatSaysForHowLongTheLauncherHasDoneNothing) {
  auto [a, b] = ends();
  const auto follower = follow(Connection(std::move(a)), "node02", "machine 0", {1s});
  StubPeer there(std::move(b));
  const auto comes = [&](const auto& wanted) {
    for (int i = 0; i < 100; ++i) {
      if (wanted(there.receive().value("beat", -1))) return true;
    }
    return false;
  };
  EXPECT_TRUE(comes([](int idle_ms) { return idle_ms >= 300; }));
  follower->serve();
  EXPECT_TRUE(comes([](int idle_ms) { return idle_ms >= 0 && idle_ms < 300; }));
}

TEST(ClusterTest, ALauncherThatDoesNothingIsLostInTheEnd) {
  for (const bool is_machine_0 : {true, false}) {
    auto [a, b] = ends();
    const auto cluster = is_machine_0 ? lead(member_at(std::move(a)), "node01", {60s})
                                      : follow(Connection(std::move(a)), "node02", "machine 0", {60s});
    StubPeer there(std::move(b));
    there.send({{"beat", 599'999}, {"silent_ms", 0}});
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(cluster->serve().ends_now);
    there.send({{"beat", 600'000}, {"silent_ms", 0}});
    serve_until(*cluster, [](const PeerRequest& request) { return request.ends_now; });
    cluster->on_end({});
    ASSERT_TRUE(cluster->end());
    EXPECT_THAT(cluster->end()->report, HasSubstr(" is lost: its launcher has done nothing for 600 s"));
  }
}

// Ranks of this machine fail for want of those of the lost one, which was lost as soon as it was silent.
TEST(ClusterTest, TheLossOfMachine0IsDatedBeforeWhatItCaused) {
  auto [a, b] = ends();
  Connection::Clock::time_point now;
  const auto follower =
      follow(connection_at(std::move(a), [&now] { return now; }), "node02", "machine 0", {2s});
  GroupOutcome outcome;
  outcome.workers.resize(1);
  outcome.workers[0].on_its_own = true;
  outcome.workers[0].status.code = 1;
  outcome.workers[0].ended_at_ns = nanoseconds_since_1970() + 100'000'000;
  follower->on_end(outcome);
  now += 2s;
  EXPECT_TRUE(follower->serve().ends_now);
  ASSERT_TRUE(follower->end());
  EXPECT_THAT(follower->end()->report, HasSubstr("machine 0 is lost: no heartbeat"));
}

TEST(ClusterTest, Machine0KnowsForHowLongTheOthersWroteNothing) {
  auto [a, b] = ends();
  const auto leader = lead(member_at(std::move(a)), "node01", {10s});
  const auto follower = follow(Connection(std::move(b)), "node02", "machine 0", {1s});
  EXPECT_TRUE(leader->decides());
  EXPECT_FALSE(follower->decides());
  EXPECT_EQ(leader->silence_elsewhere(), 0ms);  // Nobody counts as silent before it has said so.
  follower->report_silence(5s);
  serve_until(*leader, [&](const PeerRequest&) { return leader->silence_elsewhere() == 5s; });
  follower->report_silence(std::nullopt);
  serve_until(*leader, [&](const PeerRequest&) { return !leader->silence_elsewhere(); });
  follower->report_silence(1s);
  serve_until(*leader, [&](const PeerRequest&) { return leader->silence_elsewhere() == 1s; });
  follower->on_end({});
  serve_until(*leader, [&](const PeerRequest&) { return !leader->silence_elsewhere(); });
}

TEST(ClusterTest, AMachineThatMayHaveWrittenSinceIsNotSilent) {
  auto [a, b] = ends();
  Connection::Clock::time_point now;
  const auto leader = lead(member_at(std::move(a), [&now] { return now; }), "node01", {5s});
  StubPeer there(std::move(b));
  there.send({{"beat", 0}, {"silent_ms", 7000}});
  serve_until(*leader, [&](const PeerRequest&) { return leader->silence_elsewhere() == 7s; });
  now += 1s;
  EXPECT_EQ(leader->silence_elsewhere(), 0s);
}

TEST(ClusterTest, AHeartbeatWithAnotherNumberClosesTheConnection) {
  for (const char* number : {"-1", "0.5", "1e300", "4294967296", "true"}) {
    auto [a, b] = ends();
    const auto leader = lead(member_at(std::move(a)), "node01", {60s});
    StubPeer there(std::move(b));
    there.send_text(std::string(R"({"beat": 0, "silent_ms": )") + number + "}\n");
    serve_until(*leader, [](const PeerRequest& request) { return request.ends_now; });
    leader->on_end({});
    ASSERT_TRUE(leader->end());
    EXPECT_THAT(leader->end()->report, HasSubstr("machine 1 (node02 at 10.0.0.2) is lost")) << number;
  }
}

}  // namespace
}  // namespace accel::launch
