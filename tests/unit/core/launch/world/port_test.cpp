#include "core/launch/world/port.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace accel::launch {
namespace {

/// A socket that listens on `port` of the loopback address, as far as another one allows it.
Fd listen_on(int family, int port, bool reuses) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (reuses) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = static_cast<sa_family_t>(family);
  address.sin6_port = htons(static_cast<std::uint16_t>(port));  // Both families have it at the same place.
  const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd.get(), 1) != 0)
    return Fd();
  return fd;
}

/// A socket that has a port, which the kernel then gives to nobody. Who binds this very port with
/// SO_REUSEADDR may listen on it.
struct ReservedPort {
  ReservedPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    number = ntohs(address.sin_port);
  }

  Fd socket;
  int number = 0;
};

std::string refusal(int port) {
  try {
    const PortHold hold = PortHold::of(port);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
}

TEST(PortHoldTest, OnlyARankThatBindsThePortMayListen) {
  const PortHold hold = PortHold::any();
  ASSERT_GE(hold.port(), 1024);
  for (const int family : {AF_INET, AF_INET6}) {
    EXPECT_FALSE(listen_on(family, hold.port(), false)) << family;
    EXPECT_TRUE(listen_on(family, hold.port(), true)) << family;
  }
  for (const char* host : {"127.0.0.1", "::1", "192.0.2.1"})
    EXPECT_EQ(listening_sockets(host, hold.port()).size(), 1U) << host;
}

TEST(PortHoldTest, AnotherLauncherIsRefusedAlthoughNobodyListens) {
  const ReservedPort port;
  std::optional<PortHold> hold = PortHold::of(port.number);
  // However many ask, each learns who has it.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(refusal(port.number), "port " + std::to_string(port.number) +
                                        " belongs to another run, that of process " +
                                        std::to_string(::getpid()))
        << i;
  }
  EXPECT_NE(PortHold::any().port(), port.number);
  hold.reset();
  EXPECT_EQ(refusal(port.number), "");
}

TEST(PortHoldTest, APortInUseIsRefused) {
  for (const int family : {AF_INET, AF_INET6}) {
    const ReservedPort port;
    const Fd server = listen_on(family, port.number, true);
    ASSERT_TRUE(server);
    EXPECT_EQ(refusal(port.number), "port " + std::to_string(port.number) + " is in use");
  }
}

TEST(PortHoldTest, ConnectionsThatHaveEndedDoNotCount) {
  std::optional<ReservedPort> reserved(std::in_place);
  const int port = reserved->number;
  {
    const Fd server = listen_on(AF_INET, port, true);
    const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const Fd accepted(::accept(server.get(), nullptr, nullptr));
    ASSERT_TRUE(accepted);
    ::shutdown(accepted.get(), SHUT_RDWR);  // The side that ends first stays in TIME_WAIT.
  }
  EXPECT_EQ(refusal(port), "");
  // The kernel gives a port in TIME_WAIT to no server that asks for any.
  reserved.reset();
  EXPECT_FALSE(listen_on(AF_INET, port, false)) << "the port is not in TIME_WAIT, so this test shows nothing";
}

}  // namespace
}  // namespace accel::launch
