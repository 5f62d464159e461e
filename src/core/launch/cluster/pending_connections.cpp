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
    std::function<void(const PendingConnection&, const std::string& why)> on_drop,
    std::chrono::milliseconds most_time, std::chrono::milliseconds safe_age)
    : listeners_(std::move(listeners)),
      on_accept_(std::move(on_accept)),
      on_drop_(std::move(on_drop)),
      most_time_(most_time),
      safe_age_(safe_age) {}

bool PendingConnections::has_room() const {
  const Clock::time_point now = Clock::now();
  if (now < accepts_after_) return false;
  return connections_.size() < kMost || now - connections_.front().since >= safe_age_;
}

void PendingConnections::add_polls(std::vector<pollfd>& polls) const {
  for (const Fd& listener : listeners_) {
    if (has_room()) polls.push_back({listener.get(), POLLIN, 0});
  }
  for (const PendingConnection& pending : connections_) {
    const int writes = pending.connection.wants_to_write() ? POLLOUT : 0;
    polls.push_back({pending.connection.fd(), static_cast<short>(POLLIN | writes), 0});
  }
}

void PendingConnections::drop_oldest(const std::string& why) {
  on_drop_(connections_.front(), why);
  connections_.pop_front();
}

void PendingConnections::accept_from(const Fd& listener) {
  while (has_room()) {
    pollfd ready{listener.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    if (connections_.size() == kMost) drop_oldest("others connect meanwhile");
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
  }
}

void PendingConnections::serve(const std::function<void(PendingConnection&)>& serve) {
  for (const Fd& listener : listeners_) accept_from(listener);
  for (auto pending = connections_.begin(); pending != connections_.end();) {
    serve(*pending);
    const bool is_late = Clock::now() - pending->since > most_time_;
    if (is_late && pending->connection.is_open())
      on_drop_(*pending, fmt::format("it has not joined within {:g} s",
                                     std::chrono::duration<double>(most_time_).count()));
    pending = is_late || !pending->connection.is_open() ? connections_.erase(pending) : std::next(pending);
  }
}

}  // namespace accel::launch
