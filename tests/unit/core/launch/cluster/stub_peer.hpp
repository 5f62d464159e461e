#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/files/fd.hpp"

namespace accel::launch {

/// The end of a connection that a test holds: it sends lines, and waits for those of the other side.
class StubPeer {
 public:
  explicit StubPeer(Fd socket) : socket_(std::move(socket)) {
    const timeval limit{20, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  /// Connects to a port of this machine, on which somebody listens.
  static StubPeer connected_to(int port) {
    while (true) {
      Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
        return StubPeer(std::move(socket));
    }
  }

  void send_text(const std::string& text) {
    static_cast<void>(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL));
  }
  void send(const nlohmann::json& message) { send_text(message.dump() + "\n"); }

  /// The next line as JSON; null once the connection has ended.
  nlohmann::json receive() {
    while (in_.find('\n') == std::string::npos) {
      char bytes[4096];
      const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) return {};
      in_.append(bytes, static_cast<std::size_t>(count));
    }
    const std::size_t end = in_.find('\n');
    nlohmann::json message = nlohmann::json::parse(in_.substr(0, end));
    in_.erase(0, end + 1);
    return message;
  }

  void close() { socket_.reset(); }

 private:
  Fd socket_;
  std::string in_;
};

}  // namespace accel::launch
