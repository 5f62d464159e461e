#include "core/launch/cluster/pending_connections.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"

namespace accel::launch {
namespace {

/// How long nothing is accepted after descriptors or memory ran out.
constexpr std::chrono::milliseconds kShortagePause{200};

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

PendingConnections::PendingConnections(
    std::vector<Fd> listeners, std::function<void(PendingConnection&)> on_accept,
    std::function<void(const PendingConnection&, const std::string& why)> on_drop, Limits limits)
    : listeners_(std::move(listeners)),
      on_accept_(std::move(on_accept)),
      on_drop_(std::move(on_drop)),
      limits_(limits) {}

bool PendingConnections::has_room() const {
  const Clock::time_point now = Clock::now();
  if (now < accepts_after_) return false;
  return connections_.size() < limits_.most || now - connections_.front().since >= limits_.safe_age;
}

void PendingConnections::add_polls(std::vector<pollfd>& polls) const {
  // poll(2) passes over a descriptor of -1.
  for (const Fd& listener : listeners_) polls.push_back({has_room() ? listener.get() : -1, POLLIN, 0});
  for (const PendingConnection& pending : connections_) {
    const int writes = pending.connection.wants_to_write() ? POLLOUT : 0;
    polls.push_back({pending.connection.fd(), static_cast<short>(POLLIN | writes), 0});
  }
}

void PendingConnections::drop_oldest(const std::string& why) {
  on_drop_(connections_.front(), why);
  connections_.pop_front();
}

void PendingConnections::accept_from(const Fd& listener,
                                     const std::function<void(PendingConnection&)>& serve) {
  // Those that are pending are served in between, however many come.
  constexpr int kMostAtOnce = 256;
  for (int count = 0; count < kMostAtOnce && has_room(); ++count) {
    pollfd ready{listener.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    if (connections_.size() >= limits_.most) drop_oldest("others connect meanwhile");
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket && is_shortage(errno)) {
      log::warn(fmt::format("a connection cannot be accepted: {}", std::strerror(errno)));
      if (!connections_.empty()) drop_oldest("its descriptor is needed");
      accepts_after_ = Clock::now() + kShortagePause;
    }
    if (!socket) return;
    std::string address = peer_address(socket.get());
    connections_.push_back({Connection(std::move(socket), kMostBytes), std::move(address)});
    on_accept_(connections_.back());
    serve(connections_.back());
    if (!connections_.back().connection.is_open()) connections_.pop_back();
  }
}

void PendingConnections::serve(std::span<const pollfd> polls,
                               const std::function<void(PendingConnection&)>& serve) {
  auto poll = polls.begin() + static_cast<std::ptrdiff_t>(listeners_.size());
  for (auto pending = connections_.begin(); pending != connections_.end(); ++poll) {
    if (poll->revents != 0) serve(*pending);
    pending = pending->connection.is_open() ? std::next(pending) : connections_.erase(pending);
  }
  while (!connections_.empty() && Clock::now() - connections_.front().since > limits_.most_time)
    drop_oldest(fmt::format("it has not joined within {:g} s",
                            std::chrono::duration<double>(limits_.most_time).count()));
  for (const Fd& listener : listeners_) accept_from(listener, serve);
}

}  // namespace accel::launch
