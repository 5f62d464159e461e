#include "core/launch/cluster/connection.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"

namespace accel::launch {
namespace {

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "an unknown address";
  const std::string text = host.data();
  // An address of IPv4 that a socket of IPv6 shows.
  constexpr std::string_view kMapped = "::ffff:";
  return text.starts_with(kMapped) ? text.substr(kMapped.size()) : text;
}

}  // namespace

void Outgoing::close() {
  const std::lock_guard lock(mutex_);
  socket_.reset();
}

void Outgoing::leave_losses_to_heartbeats() const {
  constexpr int kOfTheSystem = 0;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kOfTheSystem, sizeof kOfTheSystem);
}

void Outgoing::queue(const nlohmann::json& message) {
  const std::lock_guard lock(mutex_);
  append(message);
}

void Outgoing::pump() {
  const std::lock_guard lock(mutex_);
  write();
}

bool Outgoing::is_empty() const {
  const std::lock_guard lock(mutex_);
  return text_.empty();
}

void Outgoing::beat(const nlohmann::json& message) {
  const std::lock_guard lock(mutex_);
  if (!socket_) return;
  if (text_.empty()) append(message);
  write();
}

void Outgoing::append(const nlohmann::json& message) {
  // Text that is not UTF-8 may come from a worker's output.
  text_ += message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Outgoing::write() {
  while (socket_ && !text_.empty()) {
    const ssize_t count = ::send(socket_.get(), text_.data(), text_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) {
      text_.clear();  // What the other side has sent before it ended is still to be read.
      return;
    }
    text_.erase(0, static_cast<std::size_t>(count));
  }
}

Connection::Connection(Fd socket, std::size_t longest, Now now) : longest_(longest), now_(std::move(now)) {
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  const auto set = [&socket](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that vanishes while all wait says nothing. Without these limits the kernel would keep its
  // connection for hours, or for a quarter of an hour if something was sent on it.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  out_ = std::make_shared<Outgoing>(std::move(socket));
}

void Connection::close() {
  if (out_ != nullptr) out_->close();
}

void Connection::send(const nlohmann::json& message) {
  if (is_open()) out_->queue(message);
}

void Connection::pump() {
  if (is_open()) out_->pump();
  std::array<char, 65536> buffer{};
  while (is_open() && in_.size() <= longest_) {
    const ssize_t count = ::recv(fd(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) return close();
    reset_silence();
    in_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

bool Connection::has_undelivered() const {
  if (!is_open()) return false;
  int bytes = 0;
  return wants_to_write() || (::ioctl(fd(), SIOCOUTQ, &bytes) == 0 && bytes > 0);
}

void Connection::flush() {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  pump();
  while (wants_to_write() && Clock::now() < deadline) {
    pollfd ready{fd(), POLLOUT, 0};
    ::poll(&ready, 1, 100);
    pump();
  }
}

std::optional<nlohmann::json> Connection::next() {
  const std::size_t end = in_.find('\n');
  if (end == std::string::npos && in_.size() <= longest_) return std::nullopt;
  if (end <= longest_) {
    try {
      nlohmann::json message = parse_json_or_discard(std::string_view(in_).substr(0, end));
      in_.erase(0, end + 1);
      if (message.is_object()) return message;
    } catch (const Error& error) {
      if (is_by_signal(error.kind())) throw;
      // It nests too deeply.
    }
  }
  is_garbled_ = true;
  in_ = {};
  close();
  return std::nullopt;
}

std::string peer_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "an unknown address";
  return numeric(address, size);
}

std::string own_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "an unknown address";
  return numeric(address, size);
}

}  // namespace accel::launch
