#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <cstdint>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "core/launch/cluster/authentication.hpp"
#include "core/launch/cluster/rendezvous_client.hpp"
#include "core/launch/cluster/rendezvous_messages.hpp"
#include "core/launch/cluster/rendezvous_server.hpp"
#include "core/launch/world/port.hpp"
#include "stub_peer.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSecret = "0123456789abcdef";

/// Machine 0 of two, which waits in a thread of its own, and stubs that connect to it.
class RendezvousTest : public ::testing::Test {
 protected:
  [[nodiscard]] RendezvousParameters parameters(int machine, const std::string& secret = "") const {
    RendezvousParameters parameters;
    parameters.machine_rank = machine;
    parameters.num_machines = 2;
    parameters.num_processes = 2;
    parameters.host = "node0" + std::to_string(machine);
    parameters.address = "127.0.0.1";
    parameters.port = port_.port();
    parameters.version = "0.1.0";
    parameters.settings = {{"training.seed", "42"}, {"training.token", "hidden"}};
    parameters.timeout_s = 60;
    parameters.min_machines = 2;
    parameters.run_id = "job-17.1";
    parameters.secret = secret;
    return parameters;
  }

  void start(const RendezvousParameters& own) {
    server_ = std::async(std::launch::async, [own] {
      Members members = await_members(own);
      Welcome common;
      common.num_machines = common.num_processes = 2;
      common.master_port = 29501;
      common.run_id = "accel-1";
      send_welcome(members, own, common);
      return members.at(1).host;
    });
  }

  /// Connects and answers the challenge. The next message is "accepted" or "refused".
  StubPeer hello(const RendezvousParameters& theirs) {
    StubPeer peer = StubPeer::connected_to(port_.port());
    const json challenge = peer.receive();
    handshake_ = {challenge.at("challenge"), new_nonce(), theirs.version, theirs.run_id};
    peer.send({{"hello", to_json(Hello{theirs.version, theirs.run_id, theirs.host, handshake_.nonce,
                                       proof_of(theirs.secret, Role::kMember, handshake_)})}});
    return peer;
  }

  /// The right launcher comes, and the run begins.
  void expect_start(const RendezvousParameters& theirs) {
    EXPECT_EQ(join(theirs).welcome.first_rank, 1);
    EXPECT_EQ(server_.get(), theirs.host);
  }

  std::string logged() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  PortHold port_ = PortHold::any();
  Handshake handshake_;
  std::future<std::string> server_;

 private:
  std::mutex mutex_;
  std::string lines_;
  log::Redirect redirect_{[this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_ += line;
  }};
};

TEST_F(RendezvousTest, TheFirstMessageIsAChallengeAndTheVersion) {
  start(parameters(0));
  const json challenge = StubPeer::connected_to(port_.port()).receive();
  EXPECT_TRUE(is_nonce(challenge.at("challenge").get<std::string>()));
  EXPECT_EQ(challenge.at("version"), "0.1.0");
  EXPECT_EQ(challenge.size(), 2U);
  expect_start(parameters(1));
}

TEST_F(RendezvousTest, WhatIsNotAHelloEndsItsConnectionAlone) {
  start(parameters(0));
  for (const std::string line :
       {"GET / HTTP/1.1\r\n\r\n", "{}\n", "{\"hello\": 1}\n", "{\"join\": {}}\n", "[]\n"}) {
    StubPeer peer = StubPeer::connected_to(port_.port());
    static_cast<void>(peer.receive());
    peer.send_text(line);
    while (!peer.receive().is_null()) {
    }
  }
  expect_start(parameters(1));
  EXPECT_THAT(logged(), HasSubstr("127.0.0.1 is turned away from 127.0.0.1:" + std::to_string(port_.port()) +
                                  ": it is not a launcher of accel"));
}

TEST_F(RendezvousTest, AnotherVersionAndAnotherRunAreTurnedAwayAlone) {
  start(parameters(0));
  RendezvousParameters other = parameters(1);
  other.version = "0.0.9";
  EXPECT_THAT(hello(other).receive().at("refused").get<std::string>(),
              HasSubstr("it has accel 0.0.9, and machine 0 has accel 0.1.0"));
  other = parameters(1);
  other.run_id = "job-17.0";
  const std::string told = hello(other).receive().at("refused");
  EXPECT_THAT(told, HasSubstr("it belongs to run 'job-17.0', and machine 0 to another one"));
  EXPECT_THAT(told, Not(HasSubstr("job-17.1")));
  expect_start(parameters(1));
  EXPECT_THAT(logged(), HasSubstr("it belongs to run 'job-17.0', and machine 0 to 'job-17.1'"));
}

TEST_F(RendezvousTest, ALauncherProvesThatItKnowsTheSecret) {
  start(parameters(0, kSecret));
  for (const char* wrong : {"", "fedcba9876543210"}) {
    EXPECT_THAT(hello(parameters(1, wrong)).receive().at("refused").get<std::string>(),
                HasSubstr("it does not know the secret of this run"));
  }
  StubPeer peer = hello(parameters(1, kSecret));
  EXPECT_TRUE(is_proof(peer.receive().at("accepted").get<std::string>(), kSecret, Role::kServer, handshake_));
  peer.close();
  expect_start(parameters(1, kSecret));
}

TEST_F(RendezvousTest, TheProofOfTheServerIsNotThatOfAMember) {
  start(parameters(0, kSecret));
  StubPeer peer = StubPeer::connected_to(port_.port());
  const json challenge = peer.receive();
  // A stranger lets machine 0 compute a proof for its own challenge, and sends it back.
  handshake_ = {challenge.at("challenge"), challenge.at("challenge"), "0.1.0", "job-17.1"};
  peer.send({{"hello", to_json(Hello{"0.1.0", "job-17.1", "node01", handshake_.nonce,
                                     proof_of(kSecret, Role::kServer, handshake_)})}});
  EXPECT_TRUE(peer.receive().contains("refused"));
  expect_start(parameters(1, kSecret));
}

TEST_F(RendezvousTest, AnOldProofIsNotTakenAgain) {
  start(parameters(0, kSecret));
  StubPeer first = hello(parameters(1, kSecret));
  EXPECT_TRUE(first.receive().contains("accepted"));
  const Handshake seen = handshake_;
  StubPeer second = StubPeer::connected_to(port_.port());
  static_cast<void>(second.receive());
  second.send({{"hello", to_json(Hello{"0.1.0", "job-17.1", "node01", seen.nonce,
                                       proof_of(kSecret, Role::kMember, seen)})}});
  EXPECT_TRUE(second.receive().contains("refused"));
  first.close();
  expect_start(parameters(1, kSecret));
}

TEST_F(RendezvousTest, WithoutASecretARefusalHasNoValues) {
  start(parameters(0));
  RendezvousParameters other = parameters(1);
  other.settings = {};
  StubPeer peer = hello(other);
  EXPECT_TRUE(peer.receive().contains("accepted"));
  peer.send({{"join", join_to_json(other)}});
  const std::string told = peer.receive().at("refused");
  EXPECT_THAT(
      told,
      HasSubstr(
          "machine 1 (node01) has another configuration than machine 0: training.seed, training.token"));
  EXPECT_THAT(told, Not(HasSubstr("hidden")));
  try {
    static_cast<void>(server_.get());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("training.token is not set, on machine 0 hidden"));
  }
}

TEST_F(RendezvousTest, WithASecretARefusalNamesTheValues) {
  start(parameters(0, kSecret));
  RendezvousParameters other = parameters(1, kSecret);
  other.settings["training.seed"] = "43";
  try {
    static_cast<void>(join(other));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("training.seed is 43, on machine 0 42"));
  }
  EXPECT_THROW(static_cast<void>(server_.get()), Error);
}

TEST_F(RendezvousTest, SilentConnectionsKeepNobodyOut) {
  start(parameters(0));
  std::vector<StubPeer> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(StubPeer::connected_to(port_.port()));
  expect_start(parameters(1));
}

TEST_F(RendezvousTest, AtARestartAnotherNumberOfRanksIsTurnedAwayAlone) {
  RendezvousParameters own = parameters(0);
  own.ranks_of_machines = {{1, 1}};
  server_ = std::async(std::launch::async, [own] { return await_members_again(own, {}).at(1).host; });
  RendezvousParameters other = parameters(1);
  other.local_processes = 2;
  StubPeer peer = hello(other);
  EXPECT_TRUE(peer.receive().contains("accepted"));
  peer.send({{"join", join_to_json(other)}});
  EXPECT_THAT(peer.receive().at("refused").get<std::string>(),
              HasSubstr("comes back with 2 ranks, and had 1"));
  StubPeer right = hello(parameters(1));
  EXPECT_TRUE(right.receive().contains("accepted"));
  right.send({{"join", join_to_json(parameters(1))}});
  EXPECT_EQ(server_.get(), "node01");
}

/// Machine 0 of three.
class ThreeMachinesTest : public RendezvousTest {
 protected:
  [[nodiscard]] RendezvousParameters of_three(int machine, int ranks) const {
    RendezvousParameters own = parameters(machine);
    own.num_machines = own.min_machines = 3;
    own.num_processes = 9;
    own.local_processes = ranks;
    return own;
  }

  void start_three() {
    const RendezvousParameters own = of_three(0, 2);
    server_ = std::async(std::launch::async, [own]() -> std::string {
      try {
        Members members = await_members(own);
        Welcome common;
        common.num_machines = 3;
        common.num_processes = 9;
        common.master_port = 29501;
        send_welcome(members, own, common);
        return "began";
      } catch (const Error& error) {
        return error.message();
      }
    });
  }

  /// Becomes a member, which nothing tells, except that nothing refuses it.
  StubPeer member(const RendezvousParameters& theirs) {
    StubPeer peer = hello(theirs);
    EXPECT_TRUE(peer.receive().contains("accepted"));
    peer.send({{"join", join_to_json(theirs)}});
    return peer;
  }
};

TEST_F(ThreeMachinesTest, EachMemberLearnsItsPlace) {
  start_three();
  StubPeer second = member(of_three(2, 4));
  StubPeer first = member(of_three(1, 3));
  const json welcome = first.receive().at("welcome");
  EXPECT_EQ(welcome.at("machine_rank"), 1);
  EXPECT_EQ(welcome.at("first_rank"), 2);
  EXPECT_EQ(second.receive().at("welcome").at("first_rank"), 5);
  EXPECT_EQ(server_.get(), "began");
}

TEST_F(ThreeMachinesTest, AMemberThatLeavesMayComeAgain) {
  start_three();
  member(of_three(1, 3)).close();
  StubPeer second = member(of_three(2, 4));
  StubPeer first = member(of_three(1, 3));
  EXPECT_TRUE(first.receive().contains("welcome"));
  EXPECT_TRUE(second.receive().contains("welcome"));
  EXPECT_EQ(server_.get(), "began");
}

TEST_F(ThreeMachinesTest, AMemberThatIsAskedToEndEndsTheStart) {
  start_three();
  StubPeer second = member(of_three(2, 4));
  second.send({{"leaves", true}});
  EXPECT_EQ(second.receive().at("refused"), "machine 2 (node02) was asked to end");
  EXPECT_EQ(server_.get(), "machine 2 (node02) was asked to end");
}

TEST_F(ThreeMachinesTest, AllMessagesOfOnePacketAreRead) {
  start_three();
  const RendezvousParameters theirs = of_three(2, 4);
  StubPeer peer = StubPeer::connected_to(port_.port());
  const json hello = to_json(Hello{theirs.version, theirs.run_id, theirs.host, new_nonce(), ""});
  peer.send_text(json{{"hello", hello}}.dump() + "\n" + json{{"join", join_to_json(theirs)}}.dump() +
                 "\n{\"leaves\": true}\n");
  EXPECT_EQ(server_.get(), "machine 2 (node02) was asked to end");
}

TEST_F(ThreeMachinesTest, TwoLaunchersOfOneMachineEndTheStart) {
  start_three();
  StubPeer first = member(of_three(1, 3));
  StubPeer again = member(of_three(1, 3));
  EXPECT_EQ(again.receive().at("refused"), "node01 and node01 both have machine_rank: 1");
  EXPECT_TRUE(first.receive().contains("waiting"));  // So machine 0 sees whether it is still there.
  EXPECT_TRUE(first.receive().contains("refused"));
  EXPECT_EQ(server_.get(), "node01 and node01 both have machine_rank: 1");
}

TEST_F(ThreeMachinesTest, RanksThatAreMissingEndTheStart) {
  start_three();
  StubPeer first = member(of_three(1, 3));
  StubPeer second = member(of_three(2, 3));
  EXPECT_THAT(first.receive().at("refused").get<std::string>(),
              HasSubstr("num_processes is 9, and the machines have 8 ranks in all"));
  EXPECT_THAT(server_.get(), HasSubstr("num_processes is 9, and the machines have 8 ranks in all"));
}

// A glob may give one machine thousands of arguments more. It is told what differs.
TEST_F(RendezvousTest, AJoinWithoutASecretMayHaveManyArguments) {
  RendezvousParameters own = parameters(0);
  own.settings["the program"] = "./caf\xe9 with 0 arguments";
  start(own);
  RendezvousParameters theirs = parameters(1);
  theirs.settings["the program"] = "./cafe with 5000 arguments";
  theirs.argument_hashes.assign(5000, ~std::uint64_t{0});
  StubPeer peer = hello(theirs);
  EXPECT_TRUE(peer.receive().contains("accepted"));
  peer.send({{"join", join_to_json(theirs)}});
  EXPECT_THAT(peer.receive().at("refused").get<std::string>(), HasSubstr("has another configuration"));
  EXPECT_THROW(server_.get(), Error);
}

TEST_F(RendezvousTest, AJoinWithoutASecretIsShort) {
  start(parameters(0));
  StubPeer peer = hello(parameters(1));
  EXPECT_TRUE(peer.receive().contains("accepted"));
  peer.send_text(std::string(600'000, 'x'));
  EXPECT_EQ(peer.receive(), nullptr);
  expect_start(parameters(1));
  EXPECT_THAT(logged(), HasSubstr("it sent what is not a message"));
}

TEST_F(RendezvousTest, TooFewDescriptorsEndTheStart) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  RendezvousParameters own = parameters(0);
  own.num_machines = std::numeric_limits<int>::max();
  try {
    static_cast<void>(await_members(own));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(
        error.message(),
        ::testing::MatchesRegex("machine 0 \\(node00\\) has a connection to each of 2147483647 machines and "
                                "needs 21474[0-9]+ file descriptors, and its launcher may have [0-9]+"));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/// A stub in the place of machine 0.
class FollowerTest : public RendezvousTest {
 protected:
  FollowerTest() : listener_(std::move(listening_sockets("127.0.0.1", port_.port()).front())) {}

  std::future<std::string> follow(const RendezvousParameters& own) {
    return std::async(std::launch::async, [own]() -> std::string {
      try {
        return join(own).welcome.run_id;
      } catch (const Error& error) {
        return error.message();
      }
    });
  }

  StubPeer accept() {
    pollfd ready{listener_.get(), POLLIN, 0};
    ::poll(&ready, 1, 20'000);
    return StubPeer(Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

  Fd listener_;
};

TEST_F(FollowerTest, ALeaderThatDoesNotKnowTheSecretIsNotBelieved) {
  for (const char* proof : {"", "0000", "echo"}) {
    std::future<std::string> follower = follow(parameters(1, kSecret));
    StubPeer peer = accept();
    peer.send({{"challenge", new_nonce()}, {"version", "0.1.0"}});
    const json hello = peer.receive().at("hello");
    peer.send({{"accepted", proof == std::string("echo") ? hello.at("proof") : json(proof)}});
    EXPECT_THAT(follower.get(), HasSubstr("has not proved that it knows the secret of this run"));
    // It has told nothing of its settings.
    EXPECT_EQ(peer.receive(), nullptr);
  }
}

TEST_F(FollowerTest, AnotherVersionEndsItAtOnce) {
  std::future<std::string> follower = follow(parameters(1));
  StubPeer peer = accept();
  peer.send({{"challenge", new_nonce()}, {"version", "0.2.0"}});
  EXPECT_THAT(follower.get(), HasSubstr("has accel 0.2.0, and this machine has accel 0.1.0"));
}

TEST_F(FollowerTest, AMadeUpWelcomeEndsIt) {
  std::future<std::string> follower = follow(parameters(1));
  StubPeer peer = accept();
  peer.send({{"challenge", new_nonce()}, {"version", "0.1.0"}});
  peer.send({{"accepted", ""}});
  peer.send({{"welcome", to_json(Welcome{1, 2, 2, 7, 29501, 0, 0, "accel-1", "", false})}});
  EXPECT_THAT(follower.get(),
              HasSubstr("sent a welcome that does not fit this run: 'first_rank' is 7, and 1 is expected"));
}

TEST_F(FollowerTest, AClosedConnectionIsTriedAgain) {
  std::future<std::string> follower = follow(parameters(1));
  accept().close();
  StubPeer garbled = accept();
  garbled.send_text("220 mail.example.org ESMTP\r\n");
  StubPeer peer = accept();
  peer.send({{"challenge", new_nonce()}, {"version", "0.1.0"}});
  peer.send({{"accepted", ""}});
  peer.send({{"welcome", to_json(Welcome{1, 2, 2, 1, 29501, 0, 0, "accel-1", "", false})}});
  EXPECT_EQ(follower.get(), "accel-1");
}

}  // namespace
}  // namespace accel::launch
