#include "core/launch/cluster/connection.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace accel::launch {
namespace {

std::pair<Fd, Fd> ends() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

TEST(ConnectionTest, MessagesArriveWholeAndInOrder) {
  auto [a, b] = ends();
  Connection here(std::move(a));
  Connection there(std::move(b));
  // It does not fit into the socket's buffer.
  const std::string large(3'000'000, 'x');
  here.send({{"large", large}});
  here.send({{"last", 1}});
  std::vector<nlohmann::json> got;
  for (int i = 0; i < 10'000 && got.size() < 2; ++i) {
    here.pump();
    there.pump();
    while (auto message = there.next()) got.push_back(std::move(*message));
  }
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].at("large"), large);
  EXPECT_EQ(got[1].at("last"), 1);
  EXPECT_FALSE(here.wants_to_write());
}

TEST(ConnectionTest, TheKernelEndsASilentConnectionUntilHeartbeatsDecide) {
  Connection connection(Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  const auto limit = [&connection] {
    int milliseconds = -1;
    socklen_t size = sizeof milliseconds;
    ::getsockopt(connection.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size);
    return milliseconds;
  };
  EXPECT_GT(limit(), 0);
  connection.outgoing()->leave_losses_to_heartbeats();
  EXPECT_EQ(limit(), 0);
}

TEST(ConnectionTest, AMessageIsDeliveredWhenTheOtherSideHasIt) {
  auto [a, b] = ends();
  Connection here(std::move(a));
  Connection there(std::move(b));
  EXPECT_FALSE(here.has_undelivered());
  here.send({{"end", 1}});
  EXPECT_TRUE(here.has_undelivered());
  here.pump();
  // A local socket counts what the other side has not read; TCP counts what its kernel does not have.
  EXPECT_FALSE(here.wants_to_write());
  EXPECT_TRUE(here.has_undelivered());
  there.pump();
  EXPECT_FALSE(here.has_undelivered());
}

TEST(ConnectionTest, WhatIsNoMessageClosesIt) {
  for (const std::string text : {"GET / HTTP/1.1\r\n", "[\n", "{\"a\": \xff}\n"}) {
    auto [a, b] = ends();
    Connection connection(std::move(a));
    ASSERT_EQ(::write(b.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    connection.pump();
    EXPECT_FALSE(connection.next().has_value());
    EXPECT_FALSE(connection.is_open()) << text;
  }
}

TEST(ConnectionTest, ALongMessageClosesItWithAndWithoutItsEnd) {
  for (const bool has_end : {false, true}) {
    auto [a, b] = ends();
    Connection connection(std::move(a), 1000);
    const std::string text = "{\"a\": \"" + std::string(1000, 'x') + (has_end ? "\"}\n" : "");
    ASSERT_EQ(::write(b.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    connection.pump();
    EXPECT_FALSE(connection.next().has_value());
    EXPECT_TRUE(connection.is_garbled());
    EXPECT_FALSE(connection.is_open());
  }
}

TEST(ConnectionTest, TheOtherSidesEndClosesItAfterItsLastMessage) {
  auto [a, b] = ends();
  Connection connection(std::move(a));
  ASSERT_EQ(::write(b.get(), "{\"end\":1}\n", 10), 10);
  b.reset();
  connection.pump();
  ASSERT_TRUE(connection.next().has_value());
  connection.pump();
  EXPECT_FALSE(connection.is_open());
  connection.send({{"more", 1}});
  EXPECT_FALSE(connection.wants_to_write());
}

}  // namespace
}  // namespace accel::launch
